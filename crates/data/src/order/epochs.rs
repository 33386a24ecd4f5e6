//! Which group is seen when: a pure function of the number of groups, the seed and the position since the start.

use crate::order::Permutation;

/// An endless order of epochs, each a permutation of its own. Any position is found at once and nothing is stored, so the
/// number of groups already seen is all that has to be remembered to go on.
#[derive(Debug, Clone)]
pub struct Order {
    groups: u64,
    seed: u64,
    shuffle: bool,
    epoch: u64,
    permutation: Permutation,
}

impl Order {
    /// # Panics
    /// If there are no groups; a dataset always has some.
    pub fn new(groups: u64, seed: u64, shuffle: bool) -> Self {
        assert!(groups > 0, "an order of nothing");
        let mut order = Self { groups, seed, shuffle, epoch: 0, permutation: Permutation::identity(groups) };
        order.turn_to(0);
        order
    }

    fn turn_to(&mut self, epoch: u64) {
        if self.shuffle {
            self.permutation = Permutation::new(self.groups, epoch_key(self.seed, epoch));
        }
        self.epoch = epoch;
    }

    /// The group at `position`, counted from the start of the first epoch.
    pub fn at(&mut self, position: u64) -> u64 {
        let epoch = position / self.groups;
        if epoch != self.epoch {
            self.turn_to(epoch);
        }
        self.permutation.at(position % self.groups)
    }
}

/// What an epoch is shuffled by.
pub(crate) fn epoch_key(seed: u64, epoch: u64) -> u64 {
    mix(seed).wrapping_add(epoch)
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

    /// Evenly in `0..bound`; the bias of multiply-and-shift is below 2⁻³² for any bound that fits `u32`.
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

    fn epoch(groups: u64, seed: u64, shuffle: bool, epoch: u64) -> Vec<u64> {
        let mut order = Order::new(groups, seed, shuffle);
        (epoch * groups..(epoch + 1) * groups).map(|position| order.at(position)).collect()
    }

    #[test]
    fn the_order_of_a_seed_never_changes() {
        // A changed order would silently change every golden loss; this is the reminder.
        assert_eq!(epoch(8, 42, true, 0), [6, 0, 7, 2, 5, 1, 3, 4]);
        assert_eq!(epoch(5000, 42, true, 0)[..6], LARGE_ORDER);
    }

    const LARGE_ORDER: [u64; 6] = [3003, 2448, 2179, 2633, 1439, 3616];

    #[test]
    fn without_shuffle_the_order_is_the_files() {
        assert_eq!(epoch(4, 1, false, 3), [0, 1, 2, 3]);
    }

    #[test]
    fn epochs_and_seeds_differ() {
        for groups in [50, 5000] {
            assert_ne!(epoch(groups, 1, true, 0), epoch(groups, 1, true, 1));
            assert_ne!(epoch(groups, 1, true, 1), epoch(groups, 2, true, 0));
            assert_ne!(epoch(groups, 1, true, 0), epoch(groups, 2, true, 0));
        }
    }

    proptest! {
        #[test]
        fn every_epoch_is_a_permutation(groups in 1u64..3000, seed: u64, number in 0u64..1000) {
            let mut seen = epoch(groups, seed, true, number);
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..groups));
        }

        /// Positions may be asked for in any order.
        #[test]
        fn a_position_is_found_at_once(groups in 1u64..2000, seed: u64, position in 0u64..10_000, other in 0u64..10_000) {
            let mut walked = Order::new(groups, seed, true);
            walked.at(other);
            prop_assert_eq!(walked.at(position), Order::new(groups, seed, true).at(position));
        }
    }
}
