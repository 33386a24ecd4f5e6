//! A seeded permutation of any number of positions, computed one position at a time.
//!
//! A Feistel network permutes the next power of two; whatever falls outside is sent through again until it falls inside
//! (cycle walking, fewer than two rounds on average). Nothing is stored but the keys, so a dataset of any size is
//! shuffled in the same few bytes. Few positions are shuffled as a table instead: exactly uniform, where a network of
//! very small halves is not.

use crate::order::{SplitMix64, mix};

/// Up to here a table is as small as anything else.
const TABLE_MAX: u64 = 1024;
/// Four suffice against an observer who sees everything; eight cost nothing beside reading an example.
const ROUNDS: usize = 8;

#[derive(Debug, Clone)]
pub(crate) struct Permutation {
    count: u64,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Identity,
    Table(Vec<u16>),
    Network { left_bits: u32, right_bits: u32, keys: [u64; ROUNDS] },
}

impl Permutation {
    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    pub(crate) fn identity(count: u64) -> Self {
        Self { count, kind: Kind::Identity }
    }

    pub(crate) fn new(count: u64, key: u64) -> Self {
        let mut numbers = SplitMix64::new(key);
        let kind = if count <= TABLE_MAX {
            let mut table: Vec<u16> = (0..count as u16).collect();
            for last in (1..table.len()).rev() {
                table.swap(last, numbers.below(last as u64 + 1) as usize);
            }
            Kind::Table(table)
        } else {
            let bits = u64::BITS - (count - 1).leading_zeros();
            let keys = std::array::from_fn(|_| numbers.next());
            Kind::Network { left_bits: bits / 2, right_bits: bits - bits / 2, keys }
        };
        Self { count, kind }
    }

    /// Where `position` goes.
    ///
    /// # Panics
    /// If there is no such position.
    pub(crate) fn at(&self, position: u64) -> u64 {
        assert!(position < self.count, "position {position} of {}", self.count);
        match &self.kind {
            Kind::Identity => position,
            Kind::Table(table) => u64::from(table[position as usize]),
            Kind::Network { left_bits, right_bits, keys } => {
                let mut value = position;
                loop {
                    value = network(value, *left_bits, *right_bits, keys);
                    if value < self.count {
                        return value;
                    }
                }
            }
        }
    }
}

/// One pass. The halves may differ by a bit; they change places every round and are back after an even number of them.
fn network(value: u64, mut left_bits: u32, mut right_bits: u32, keys: &[u64; ROUNDS]) -> u64 {
    let mask = |bits: u32| (1u64 << bits) - 1;
    let (mut left, mut right) = (value >> right_bits, value & mask(right_bits));
    for key in keys {
        let mixed = (left ^ mix(mix(right ^ key).wrapping_add(*key))) & mask(left_bits);
        (left, right) = (right, mixed);
        (left_bits, right_bits) = (right_bits, left_bits);
    }
    (left << right_bits) | right
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(count: u64, key: u64) -> Vec<u64> {
        let permutation = Permutation::new(count, key);
        (0..count).map(|position| permutation.at(position)).collect()
    }

    proptest! {
        #[test]
        fn every_position_goes_somewhere_of_its_own(count in 1u64..5000, key: u64) {
            let mut seen = all(count, key);
            seen.sort_unstable();
            prop_assert!(seen.iter().copied().eq(0..count));
        }
    }

    #[test]
    fn sizes_around_powers_of_two_and_large_ones() {
        for count in [1, 2, 1023, 1024, 1025, 2047, 2048, 2049, 4097, 65_536, 65_537] {
            let mut seen = all(count, 7);
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..count), "{count}");
        }
        let huge = Permutation::new(u64::MAX / 3, 1);
        assert_ne!(huge.at(0), huge.at(1));
        assert!(huge.at(u64::MAX / 3 - 1) < u64::MAX / 3);
    }

    /// Chi-squared of a table of counts that should be equal, as a distance from its mean in standard deviations.
    fn deviations(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let squared: f64 = counts.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
        let freedom = (counts.len() - 1) as f64;
        (squared - freedom) / (2.0 * freedom).sqrt()
    }

    /// Where a position goes is uniform over keys: 64 × 64 cells of position and target.
    #[test]
    fn every_target_is_equally_likely() {
        for count in [1500u64, 4096, 10_000] {
            let mut cells = vec![0u64; 64 * 64];
            for key in 0..400 {
                let permutation = Permutation::new(count, key);
                for position in 0..count {
                    cells[(position * 64 / count * 64 + permutation.at(position) * 64 / count) as usize] += 1;
                }
            }
            // A permutation's rows and columns have fixed sums, which only lowers the deviation.
            assert!(deviations(&cells) < 5.0, "{count}: {}", deviations(&cells));
        }
    }

    /// Neighbours go far apart, in any direction: the difference of their targets is uniform over the circle.
    #[test]
    fn neighbours_are_independent() {
        let count = 4099u64;
        let mut cells = vec![0u64; 100];
        for key in 0..300 {
            let targets = all(count, key);
            for pair in targets.windows(2) {
                let difference = (pair[1] + count - pair[0]) % count;
                cells[(difference * 100 / count) as usize] += 1;
            }
        }
        assert!(deviations(&cells).abs() < 5.0, "{}", deviations(&cells));
    }

    /// The number of positions that stay where they are is Poisson distributed with mean 1.
    #[test]
    fn fixed_points_are_as_rare_as_chance_has_it() {
        let trials = 3000;
        let (mut none, mut total) = (0, 0);
        for key in 0..trials {
            let fixed = all(1100, key).iter().enumerate().filter(|(i, t)| *i as u64 == **t).count();
            none += u64::from(fixed == 0);
            total += fixed as u64;
        }
        let share = none as f64 / trials as f64;
        assert!((share - (-1f64).exp()).abs() < 0.04, "{share}");
        assert!((total as f64 / trials as f64 - 1.0).abs() < 0.08, "{total}");
    }

    #[test]
    fn keys_differ() {
        assert_ne!(all(2000, 1), all(2000, 2));
        assert_ne!(all(20, 1), all(20, 2));
    }
}
