//! Run folders, read from outside while somebody may be writing them.

mod follow;
mod metrics;
mod status;

pub use follow::Follower;
pub use metrics::{EvalPoint, Metrics, StepPoint};
pub use status::{RunState, RunStatus, list_runs, run_status};
