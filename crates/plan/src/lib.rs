//! Chooses, lays out and verifies the memory plan of a training step. Pure functions: no I/O, no device.
//!
//! The way of a plan: a program for some micro-batch → [`recompute`] drops what is rebuilt later →
//! [`lifetimes`] says from when to when each buffer is needed → [`layout`] gives each an address →
//! [`schedule`] resolves every operator to addresses → [`verify`] replays the result. [`search`]
//! goes over the decisions and picks one; [`report`] says what it costs.

mod assemble;
mod cards;
mod device;
mod error;
mod forward_only;
pub mod layout;
pub mod lifetimes;
mod picture;
mod rates;
pub mod recompute;
mod recorded;
mod report;
mod schedule;
pub mod search;
mod sizing;
mod time;
pub mod verify;

pub use assemble::{Plan, assemble};
pub use cards::{Figures, device_names, gpu_profile, is_too_old, known_device, present_device, similar_devices};
pub use device::{Backing, DeviceProfile, GPU_STAGING_BYTES};
pub use error::PlanError;
pub use forward_only::{ForwardRequest, plan_forward};
pub use picture::{Band, Picture, Timeline, TimelineBuffer, TimelineStep};
pub use rates::{AttentionRate, CardRates, ProductGrid, Sustained};
pub use recompute::Drops;
pub use report::{
    Alternative, Categories, DeviceReport, HostCategories, HostReport, Modes, Predicted, Report, SaveMode, SpeedAt,
};
pub use schedule::{Buffer, Lane, Place, Region, Schedule, Step};
pub use search::{
    Budgets, Chosen, Fixed, Goal, KeepPin, Pins, Request, SAME_SPEED, SavePin, Variant, WRITER_BYTES, plan, speed_curve,
};
pub use time::{Estimate, estimate, step_cost, work_seconds};
