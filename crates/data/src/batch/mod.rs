//! An update's groups binned into flat micro-batches.

mod bins;
mod pack;
mod update;

pub use pack::{Capacity, MicroBatch, fill_rate, pack, pack_groups};
pub use update::{Amount, UpdateHead};
pub(crate) use update::{Planner, Rules, planner_bytes};
