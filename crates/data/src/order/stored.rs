//! Iterating over stores: any position is found at once.

use std::sync::Arc;

use super::iteration::{Cursor, Located, Next};
use super::mixture::Mixture;
use crate::error::DataError;
use crate::order::{Order, mix};
use crate::store::{Layout, PerToken, Store, StoreReader};

/// The stores of a dataset, each with its weight where they have any.
pub(crate) struct Stored {
    pub stores: Vec<Store>,
    pub weights: Option<Vec<f64>>,
    pub layout: Layout,
}

impl Stored {
    /// Groups of each store.
    fn counts(&self) -> Vec<u64> {
        self.stores.iter().map(|store| store.sequences(self.layout.streams) / self.layout.group as u64).collect()
    }
}

pub(crate) struct StoredIteration {
    stored: Arc<Stored>,
    readers: Vec<StoreReader>,
    order: StoreOrder,
    identity: u64,
    position: u64,
    end: Option<u64>,
    /// The group at `position`, once looked at.
    pub group: Vec<Located>,
    looked: bool,
}

/// From positions to groups of stores.
enum StoreOrder {
    /// All stores as one, each group once per epoch. `ends` are running sums of their groups.
    Whole { order: Order, ends: Vec<u64> },
    /// By weight, each store with its own epochs.
    Mixed { mixture: Mixture, orders: Vec<Order> },
}

impl StoreOrder {
    fn at(&mut self, position: u64) -> (usize, u64) {
        match self {
            Self::Whole { order, ends } => {
                let group = order.at(position);
                let store = ends.partition_point(|&end| end <= group);
                let before = if store == 0 { 0 } else { ends[store - 1] };
                (store, group - before)
            }
            Self::Mixed { mixture, orders } => {
                let (store, position) = mixture.at(position);
                (store, orders[store].at(position))
            }
        }
    }
}

impl StoredIteration {
    pub(crate) fn new(stored: Arc<Stored>, seed: u64, shuffle: bool) -> Result<Self, DataError> {
        let counts = stored.counts();
        let order = match &stored.weights {
            None => StoreOrder::whole(&counts, seed, shuffle),
            Some(weights) => {
                let order = |(index, &groups): (usize, &u64)| {
                    // Sources of equal size must not be shuffled alike.
                    Order::new(groups, seed ^ mix(index as u64), shuffle)
                };
                let orders = counts.iter().enumerate().map(order).collect();
                StoreOrder::Mixed { mixture: Mixture::new(weights, seed, shuffle)?, orders }
            }
        };
        let weights = stored.weights.iter().flatten().map(|weight| weight.to_bits());
        let contents = stored.stores.iter().map(|store| store.totals(stored.layout.streams).content);
        let numbers = counts.iter().copied().chain(contents).chain(weights).chain([
            seed,
            u64::from(shuffle),
            stored.layout.group as u64,
        ]);
        let identity = numbers.fold(0, |hash, number| mix(hash ^ mix(number)));
        Ok(Self::with(stored, order, identity, None))
    }

    /// Each group once, in the order of the files, whatever the weights.
    pub(crate) fn once(stored: Arc<Stored>) -> Self {
        let counts = stored.counts();
        let total = counts.iter().sum();
        Self::with(stored, StoreOrder::whole(&counts, 0, false), 0, Some(total))
    }

    fn with(stored: Arc<Stored>, order: StoreOrder, identity: u64, end: Option<u64>) -> Self {
        let readers = stored.stores.iter().map(|store| store.reader(stored.layout)).collect();
        Self { stored, readers, order, identity, position: 0, end, group: Vec::new(), looked: false }
    }

    pub(super) fn peek(&mut self) -> Result<Next, DataError> {
        if self.end.is_some_and(|end| self.position >= end) {
            return Ok(Next::End);
        }
        if !self.looked {
            self.group.clear();
            let (store, group) = self.order.at(self.position);
            let size = self.stored.layout.records_per_group() as u64;
            for record in group * size..(group + 1) * size {
                let entry = self.readers[store].entry(record)?;
                self.group.push(Located { source: store as u32, chunk: 0, entry });
            }
            self.looked = true;
        }
        Ok(Next::Group)
    }

    pub(super) fn advance(&mut self) {
        self.position += 1;
        self.looked = false;
    }

    pub(super) fn cursor(&self) -> Cursor {
        Cursor { groups: self.position, order: self.identity, sources: Vec::new() }
    }

    pub(super) fn seek(&mut self, cursor: &Cursor) -> Result<(), DataError> {
        if cursor.order != self.identity || !cursor.sources.is_empty() {
            return Err(DataError::OtherCursor);
        }
        self.position = cursor.groups;
        self.looked = false;
        Ok(())
    }

    pub(super) fn read(
        &mut self,
        located: &Located,
        tokens: &mut [i32],
        beside: Option<PerToken<'_>>,
    ) -> Result<Option<i32>, DataError> {
        self.readers[located.source as usize].read(&located.entry, tokens, beside)
    }
}

impl StoreOrder {
    fn whole(counts: &[u64], seed: u64, shuffle: bool) -> Self {
        let mut total = 0;
        let ends = counts.iter().map(|count| {
            total += count;
            total
        });
        let ends: Vec<u64> = ends.collect();
        Self::Whole { order: Order::new(total, seed, shuffle), ends }
    }
}
