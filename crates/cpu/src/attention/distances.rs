//! The gradient of a bias by distance: summed up sequence by sequence, then over the sequences in their order.

use plimsoll_graph::ops::Attention;

use super::TILE;
use super::scores::Band;
use super::sequences::{Pair, Pairs};
use crate::args::Matrix;
use crate::workers::Workers;

/// One row of sums for each head; a sequence's begin at `q_start + k_start`. Within a sequence they are ordered by
/// `query - key`, as a [`Band`] is; the table's order is the other way round.
#[derive(Clone, Copy)]
pub(super) struct DistanceSums(pub Matrix);

impl DistanceSums {
    /// # Safety
    /// Nobody else may touch the sums of this head and sequence while the slice lives.
    unsafe fn of<'s>(self, head: usize, pair: &Pair) -> &'s mut [f32] {
        let start = self.0.row(head).wrapping_add(pair.queries.start + pair.keys.start);
        // SAFETY: a sequence has fewer distances than queries and keys, so these end before the next sequence's.
        unsafe { std::slice::from_raw_parts_mut(start, pair.distances()) }
    }

    /// # Safety
    /// The sums of this head and sequence must be the caller's alone.
    pub(super) unsafe fn clear(self, head: usize, pair: &Pair) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.of(head, pair) }.fill(0.0);
    }

    /// Adds what two tiles have given.
    ///
    /// # Safety
    /// The sums of this head and sequence must be the caller's alone.
    pub(super) unsafe fn add(self, head: usize, pair: &Pair, (query_tile, key_tile): (usize, usize), band: &Band) {
        // SAFETY: the caller's promise is passed on.
        let sums = unsafe { self.of(head, pair) };
        // The place of the band's first number; what lies outside of the sequence was seen by nobody.
        let first = (query_tile * TILE + pair.keys.len()) as isize - (key_tile * TILE + TILE) as isize;
        let skipped = (-first).max(0) as usize;
        let to = sums.iter_mut().skip(first.max(0) as usize);
        to.zip(&band[skipped..2 * TILE - 1]).for_each(|(sum, number)| *sum += number);
    }

    /// The gradient of the whole table, a head at a time.
    pub(super) fn add_up(self, op: &Attention, pairs: Pairs, workers: &Workers, table: Matrix) {
        workers.for_each(op.heads.query, |_, head| {
            // SAFETY: the row of a head belongs to one task, and its sums have been written.
            let row = unsafe { std::slice::from_raw_parts_mut(table.row(head), table.cols) };
            row.fill(0.0);
            for pair in pairs.iter().filter(|pair| pair.distances() > 0) {
                // SAFETY: as above.
                let sums = unsafe { self.of(head, &pair) };
                let first = op.max_length - pair.queries.len();
                row[first..].iter_mut().zip(sums.iter().rev()).for_each(|(entry, sum)| *entry += sum);
            }
        });
    }
}
