//! Which rows are held out: a random share of them, exact to one row, told for each row by itself.
//!
//! The readable rows of a source are numbered through its files and cut into strata that hold one row of the share each:
//! for a tenth, ten rows; for 0.3, now three and now four. A hash of seed and stratum says which of them is held out. So
//! the share is exact at every point of the data, not only at its end; nothing periodic in the data can fall on one side;
//! and a row's side depends on its number alone, whatever the storage mode, the order of reading and the threads.

use crate::order::SplitMix64;

/// One side of a division of the rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HoldOut {
    /// Of the rows, between 0 and 1; to nine decimal places.
    pub share: f64,
    pub seed: u64,
    /// The rows held out, or all the others.
    pub held: bool,
}

/// Shares are counted in these, so that a tenth of ten rows is one row and not almost one.
const PARTS: u64 = 1_000_000_000;

impl HoldOut {
    /// Whether this side gets the row, which has `row` readable rows of its source before it.
    pub(crate) fn takes(&self, row: u64) -> bool {
        let share = (self.share.clamp(0.0, 1.0) * PARTS as f64).round() as u64;
        // Of a share above a half, the others are picked: a stratum has at least two rows.
        let minority = share.min(PARTS - share);
        let picked = minority > 0 && self.is_picked(row, u128::from(minority));
        let held = picked == (minority == share);
        held == self.held
    }

    fn is_picked(&self, row: u64, minority: u128) -> bool {
        let parts = u128::from(PARTS);
        let stratum = u128::from(row) * minority / parts;
        let first = |stratum: u128| (stratum * parts).div_ceil(minority) as u64;
        let (begin, end) = (first(stratum), first(stratum + 1));
        let mut numbers = SplitMix64::new(self.seed ^ SplitMix64::new(stratum as u64).next());
        row - begin == numbers.below(end - begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// At every point of the data the share is exact to one row, and each row is on one side.
        #[test]
        fn exact_everywhere_and_disjoint(share in 0.0f64..=1.0, seed: u64, rows in 1u64..3000) {
            let mut held = 0;
            for row in 0..rows {
                let takes = |held| HoldOut { share, seed, held }.takes(row);
                prop_assert_ne!(takes(true), takes(false));
                held += u64::from(takes(true));
                prop_assert!((held as f64 - share * (row + 1) as f64).abs() <= 1.0 + 1e-6, "{} of {}", held, row + 1);
            }
        }

        /// Where share and rows make a whole number, so is the count.
        #[test]
        fn whole_numbers_are_met(tenths in 1u64..10, seed: u64, rows in 1u64..200) {
            let hold = HoldOut { share: tenths as f64 / 10.0, seed, held: true };
            let held = (0..10 * rows).filter(|row| hold.takes(*row)).count() as u64;
            prop_assert_eq!(held, tenths * rows);
        }
    }

    #[test]
    fn seeds_differ_and_periods_do_not_matter() {
        let sides = |seed| (0..1000).map(|row| HoldOut { share: 0.1, seed, held: true }.takes(row)).collect::<Vec<_>>();
        assert_eq!(sides(1), sides(1));
        assert_ne!(sides(1), sides(2));
        // Of each residue, about as many are held out: 100 of 1000 rows over ten residues.
        let mut by_residue = [0; 10];
        for (row, held) in sides(7).into_iter().enumerate() {
            by_residue[row % 10] += i32::from(held);
        }
        assert!(by_residue.iter().all(|count| (2..=25).contains(count)), "{by_residue:?}");
    }
}
