//! In which order examples are seen: a seeded shuffle per epoch, and updates of exactly S sequences.

/// Which example comes when. A pure function of length, seed and epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    len: usize,
    seed: u64,
    shuffle: bool,
}

impl Order {
    /// # Panics
    /// If `len` is 0 (a dataset never is) or more than `u32` can number.
    pub fn new(len: usize, seed: u64, shuffle: bool) -> Self {
        assert!(len > 0, "an order of nothing");
        assert!(u32::try_from(len).is_ok(), "too many examples: {len}");
        Self { len, seed, shuffle }
    }

    /// The permutation of epoch `epoch`, each example once.
    pub fn epoch(&self, epoch: u64) -> Vec<u32> {
        let mut indices: Vec<u32> = (0..self.len as u32).collect();
        if self.shuffle {
            let mut numbers = SplitMix64::new(mix(self.seed).wrapping_add(epoch));
            for last in (1..indices.len()).rev() {
                indices.swap(last, numbers.below(last as u64 + 1) as usize);
            }
        }
        indices
    }

    /// Updates of `sequences` examples, going on from `cursor`: the number of sequences already seen.
    ///
    /// # Panics
    /// If `sequences` is 0.
    pub fn updates(self, sequences: usize, cursor: u64) -> Updates {
        assert!(sequences > 0, "an update of nothing");
        let epoch = cursor / self.len as u64;
        Updates { order: self, sequences, cursor, epoch, permutation: self.epoch(epoch) }
    }
}

/// An endless iterator over updates. An epoch's last update is completed with the next epoch's first examples, so each has
/// exactly the number of sequences asked for.
#[derive(Debug, Clone)]
pub struct Updates {
    order: Order,
    sequences: usize,
    cursor: u64,
    epoch: u64,
    permutation: Vec<u32>,
}

impl Updates {
    /// Sequences seen so far: all that a checkpoint has to remember.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Epochs seen so far, with the begun part of the current one.
    pub fn epochs_done(&self) -> f64 {
        self.cursor as f64 / self.order.len as f64
    }

    /// Updates in `epochs` epochs, rounded up.
    pub fn per_epochs(&self, epochs: f64) -> u64 {
        (epochs * self.order.len as f64 / self.sequences as f64).ceil() as u64
    }

    fn next_example(&mut self) -> u32 {
        let len = self.order.len as u64;
        let epoch = self.cursor / len;
        if epoch != self.epoch {
            self.permutation = self.order.epoch(epoch);
            self.epoch = epoch;
        }
        let example = self.permutation[(self.cursor % len) as usize];
        self.cursor += 1;
        example
    }
}

impl Iterator for Updates {
    type Item = Vec<u32>;

    fn next(&mut self) -> Option<Vec<u32>> {
        Some((0..self.sequences).map(|_| self.next_example()).collect())
    }
}

/// The generator of Steele, Lea and Flood: the n-th number is a hash of seed and n, so it needs no state but a counter.
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        // Hashed, so that neighbouring seeds do not give shifted copies of one sequence.
        Self { state: mix(seed) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// Evenly in `0..bound`; the bias of multiply-and-shift is below 2⁻³² for any dataset that fits `u32`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_order_of_a_seed_never_changes() {
        // A changed order would silently change every golden loss; this is the reminder.
        assert_eq!(Order::new(8, 42, true).epoch(0), [6, 0, 7, 2, 5, 1, 3, 4]);
    }

    #[test]
    fn without_shuffle_the_order_is_the_files() {
        assert_eq!(Order::new(4, 1, false).epoch(3), [0, 1, 2, 3]);
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let order = Order::new(50, 1, true);
        assert_ne!(order.epoch(0), order.epoch(1));
        assert_ne!(order.epoch(1), Order::new(50, 2, true).epoch(0));
        assert_ne!(order.epoch(0), Order::new(50, 2, true).epoch(0));
    }

    #[test]
    fn a_partial_update_is_completed_from_the_next_epoch() {
        let mut updates = Order::new(3, 0, false).updates(2, 0);
        let first_three: Vec<_> = updates.by_ref().take(3).collect();
        assert_eq!(first_three, [vec![0, 1], vec![2, 0], vec![1, 2]]);
        assert_eq!(updates.cursor(), 6);
        assert_eq!(updates.per_epochs(1.0), 2);
    }

    proptest! {
        #[test]
        fn every_epoch_is_a_permutation(len in 1usize..300, seed: u64, epoch in 0u64..1000) {
            let mut seen = Order::new(len, seed, true).epoch(epoch);
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..len as u32).collect::<Vec<_>>());
        }

        #[test]
        fn a_cursor_resumes_exactly(
            len in 1usize..40, seed: u64, size in 1usize..50, stop in 0usize..20, other in 1usize..50,
        ) {
            let order = Order::new(len, seed, true);
            let whole: Vec<u32> = order.updates(size, 0).take(40).flatten().collect();
            let mut until = order.updates(size, 0);
            let before: Vec<u32> = until.by_ref().take(stop).flatten().collect();
            // Also when the batch changes on the way.
            let after = order.updates(other, until.cursor()).take(40).flatten();
            let resumed: Vec<u32> = before.into_iter().chain(after).take(whole.len()).collect();
            prop_assert_eq!(&resumed[..], &whole[..resumed.len()]);
        }
    }
}
