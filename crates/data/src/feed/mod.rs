//! Micro-batches ahead of whoever trains, and one after another for evaluation.

mod ring;
mod sequential;

pub use ring::{BatchLease, Feed, FeedOptions, SLOTS, Waited};
pub use sequential::Sequential;
pub(crate) use sequential::first;
