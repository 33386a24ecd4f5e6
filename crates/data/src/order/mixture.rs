//! Several sources with weights: which source is next, and which of its groups.
//!
//! Positions come in rounds. After any number of rounds each source has had its exact share, rounded to a whole number by
//! largest remainder over everything so far, so nothing is lost to rounding in the long run. Inside a round the sources
//! are shuffled by seed. All of it is a function of the position.

use crate::error::DataError;
use crate::order::Permutation;
use crate::order::mix;

/// Positions of a round, unless a small share needs a longer one to have at least one position in each.
const ROUND_MIN: u64 = 1024;
const ROUND_MAX: u64 = 1 << 16;
/// What a mixture holds at most: the table of sources twice while a round is laid out, and the ranks.
pub(crate) const MIXTURE_BYTES: u64 = ROUND_MAX * (2 * size_of::<u16>() + size_of::<u32>()) as u64;
/// Keeps a mixture's keys apart from those of the orders.
const MIXTURE: u64 = 0x006D_6978_7475_7265;

#[derive(Debug, Clone)]
pub(crate) struct Mixture {
    shares: Vec<f64>,
    round: u64,
    seed: u64,
    shuffle: bool,
    /// Of the round last looked into: its number, the source of each position, and each source's groups before it.
    current: u64,
    sources: Vec<u16>,
    /// How many of the same source come before each position within the round.
    ranks: Vec<u32>,
    before: Vec<u64>,
}

impl Mixture {
    pub(crate) fn new(weights: &[f64], seed: u64, shuffle: bool) -> Result<Self, DataError> {
        let total: f64 = weights.iter().sum();
        for (index, &weight) in weights.iter().enumerate() {
            let source_number = index + 1;
            if !weight.is_finite() || weight <= 0.0 {
                return Err(DataError::Weight { source_number, weight, reason: "is not above 0" });
            }
            if weight / total * (ROUND_MAX as f64) < 2.0 {
                return Err(DataError::Weight { source_number, weight, reason: "is less than 1/32768 of all weights" });
            }
        }
        let shares: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        let smallest = shares.iter().copied().fold(1.0, f64::min);
        // At least two positions of each source in every round: then rounding never makes one give a position back.
        let round = ((2.0 / smallest).ceil() as u64).next_power_of_two().clamp(ROUND_MIN, ROUND_MAX);
        let (sources, ranks, before) = (Vec::new(), Vec::new(), vec![0; weights.len()]);
        Ok(Self { shares, round, seed, shuffle, current: u64::MAX, sources, ranks, before })
    }

    /// The source at `position`, and how many of its groups came before.
    pub(crate) fn at(&mut self, position: u64) -> (usize, u64) {
        let (round, offset) = (position / self.round, (position % self.round) as usize);
        if round != self.current {
            self.turn_to(round);
        }
        let source = usize::from(self.sources[offset]);
        (source, self.before[source] + u64::from(self.ranks[offset]))
    }

    fn turn_to(&mut self, round: u64) {
        self.before = self.counts_after(round);
        let after = self.counts_after(round + 1);
        let mut in_turn: Vec<u16> = Vec::with_capacity(self.round as usize);
        for (source, (after, before)) in after.iter().zip(&self.before).enumerate() {
            in_turn.extend(std::iter::repeat_n(source as u16, (after - before) as usize));
        }
        let order = Permutation::new(self.round, mix(self.seed ^ MIXTURE).wrapping_add(round));
        self.sources.clear();
        self.ranks.clear();
        let mut seen = vec![0u32; self.shares.len()];
        for offset in 0..self.round {
            let offset = if self.shuffle { order.at(offset) } else { evenly(offset, self.round) };
            let source = in_turn[offset as usize];
            self.sources.push(source);
            self.ranks.push(seen[usize::from(source)]);
            seen[usize::from(source)] += 1;
        }
        self.current = round;
    }

    /// Groups of each source in the first `rounds` rounds: its share of all positions, those left over to the largest
    /// remainders, the first of equal ones.
    fn counts_after(&self, rounds: u64) -> Vec<u64> {
        let positions = rounds * self.round;
        let quotas: Vec<f64> = self.shares.iter().map(|share| share * positions as f64).collect();
        let mut counts: Vec<u64> = quotas.iter().map(|quota| quota.floor() as u64).collect();
        let mut by_remainder: Vec<usize> = (0..counts.len()).collect();
        by_remainder.sort_by(|&a, &b| (quotas[b].fract()).total_cmp(&quotas[a].fract()).then(a.cmp(&b)));
        let given: u64 = counts.iter().sum();
        for index in (0..positions.saturating_sub(given)).zip(by_remainder.iter().cycle()).map(|(_, index)| *index) {
            counts[index] += 1;
        }
        // Sums of shares may exceed 1 by a rounding error, and with it the counts.
        for index in (0..given.saturating_sub(positions)).zip(by_remainder.iter().rev().cycle()).map(|(_, i)| *i) {
            counts[index] -= 1;
        }
        counts
    }
}

/// A bijection of a power of two that visits distant positions in turn: the bits reversed.
fn evenly(offset: u64, round: u64) -> u64 {
    let bits = round.trailing_zeros();
    if bits == 0 { 0 } else { offset.reverse_bits() >> (u64::BITS - bits) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn shares_are_exact_in_every_block_and_in_the_long_run() {
        let mut mixture = Mixture::new(&[1.0, 2.0, 4.0], 3, true).expect("valid");
        let mut counts = [0u64; 3];
        for position in 0..7 * mixture.round {
            counts[mixture.at(position).0] += 1;
            if (position + 1) % mixture.round == 0 {
                for (count, share) in counts.iter().zip([1.0, 2.0, 4.0]) {
                    let exact = share / 7.0 * (position + 1) as f64;
                    assert!((*count as f64 - exact).abs() < 1.0, "{counts:?} after {position}");
                }
            }
        }
        assert_eq!(counts, [mixture.round, 2 * mixture.round, 4 * mixture.round]);
    }

    #[test]
    fn weights_that_mean_nothing_are_refused() {
        for weights in [vec![1.0, 0.0], vec![1.0, -1.0], vec![f64::NAN, 1.0], vec![1e9, 1.0], vec![f64::INFINITY]] {
            assert!(matches!(Mixture::new(&weights, 0, true), Err(DataError::Weight { .. })), "{weights:?}");
        }
        let rare = Mixture::new(&[30_000.0, 1.0], 0, true).expect("valid");
        assert_eq!(rare.round, 65_536);
    }

    proptest! {
        /// Each source gives its groups in turn, none left out, from wherever one begins.
        #[test]
        fn sources_are_read_in_turn(
            weights in prop::collection::vec(0.01f64..10.0, 1..6), seed: u64, shuffle: bool, start in 0u64..100_000,
        ) {
            let mut mixture = Mixture::new(&weights, seed, shuffle).expect("valid");
            let mut next: Vec<Option<u64>> = vec![None; weights.len()];
            for position in start..start + 5000 {
                let (source, index) = mixture.at(position);
                if let Some(expected) = next[source] {
                    prop_assert_eq!(index, expected);
                }
                next[source] = Some(index + 1);
            }
            let mut fresh = Mixture::new(&weights, seed, shuffle).expect("valid");
            prop_assert_eq!(fresh.at(start + 4999), mixture.at(start + 4999));
        }
    }
}
