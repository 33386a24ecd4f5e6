//! What the data of a run takes in memory, whether it is open or still to be made.

use plimsoll_data::{Amount, Capacity, Footprint};
use plimsoll_train::{DataMemory, data_bytes};

/// Of training and evaluation data together.
#[derive(Clone, Copy, Debug)]
pub struct RunFootprint {
    train: Footprint,
    eval: Option<Footprint>,
    is_held: bool,
}

impl RunFootprint {
    /// Of datasets that are there.
    pub fn held(train: Footprint, eval: Option<Footprint>) -> Self {
        Self { train, eval, is_held: true }
    }

    /// Of datasets that are not made yet.
    pub fn forecast(train: Footprint, eval: Option<Footprint>) -> Self {
        Self { train, eval, is_held: false }
    }

    /// What feeding it takes, given what a micro-batch holds.
    pub fn feed_bytes(&self, amount: Amount, capacity: Capacity) -> u64 {
        data_bytes(&self.train, self.eval.as_ref(), amount, capacity)
    }

    /// As a plan counts it.
    pub fn memory<'a>(&self, feed_bytes: &'a dyn Fn(Capacity) -> u64) -> DataMemory<'a> {
        let resident_bytes = self.train.resident_bytes + self.eval.map_or(0, |eval| eval.resident_bytes);
        let held_bytes = if self.is_held { resident_bytes } else { 0 };
        DataMemory { resident_bytes, held_bytes, feed_bytes }
    }
}
