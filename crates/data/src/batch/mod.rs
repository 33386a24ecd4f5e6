//! An update's groups binned into flat micro-batches.

mod bins;
mod capacity;
mod micro_batch;
mod pack;
mod update;

pub use capacity::{Capacity, FillShape, PerStream, STREAMS_MAX, StreamCapacity};
pub use micro_batch::{MicroBatch, NO_LABEL, NO_MARK, TokenStream};
pub(crate) use pack::{check_group_fits, check_streams};
pub use pack::{fill_rate, pack, pack_groups};
pub use update::{Amount, UpdateHead};
pub(crate) use update::{Planner, Rules, planner_bytes};
