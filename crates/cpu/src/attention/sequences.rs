//! Which tokens belong together, and which tiles of keys a tile of queries sees.

use std::ops::Range;

use plimsoll_graph::ops::{Attention, Mask, QkvLayout};
use plimsoll_runtime::RuntimeError;

use super::{Operands, TILE};
use crate::args::Call;

/// Sequences of the micro-batch by their boundaries.
#[derive(Clone, Copy)]
pub(super) struct Sequences<'a>(&'a [i32]);

impl<'a> Sequences<'a> {
    pub(super) fn new(call: &Call<'a>, input: usize, tokens: usize) -> Result<Self, RuntimeError> {
        // SAFETY: nobody writes to the boundaries while a step runs.
        let bounds: &[i32] = unsafe { call.input::<i32>(input)?.slice() };
        let ordered = bounds.is_sorted() && bounds.first().is_some_and(|&first| first >= 0);
        if !ordered || bounds.last().is_some_and(|&last| last as usize > tokens) {
            return Err(call.error(format!("the sequence boundaries do not divide {tokens} tokens")));
        }
        Ok(Self(bounds))
    }

    pub(super) fn count(self) -> usize {
        self.0.len() - 1
    }

    pub(super) fn tokens(self, sequence: usize) -> Range<usize> {
        self.0[sequence] as usize..self.0[sequence + 1] as usize
    }

    /// Tokens that belong to no sequence.
    pub(super) fn outside(self, tokens: usize) -> [Range<usize>; 2] {
        [0..self.0[0] as usize, self.0[self.count()] as usize..tokens]
    }
}

/// The sequences of queries, each with the keys that it may see.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'a> {
    pub queries: Sequences<'a>,
    pub keys: Sequences<'a>,
}

impl<'a> Pairs<'a> {
    /// By the boundaries that stand at `input`.
    pub(super) fn new(op: &Attention, call: &Call<'a>, input: usize, of: &Operands) -> Result<Self, RuntimeError> {
        let queries = Sequences::new(call, input, of.q.matrix.rows)?;
        let keys = match op.layout {
            QkvLayout::Fused => queries,
            _ => Sequences::new(call, input + 1, of.k.matrix.rows)?,
        };
        let pairs = Self { queries, keys };
        if keys.count() != queries.count() {
            let reason = format!("{} sequences of queries, {} of keys", queries.count(), keys.count());
            return Err(call.error(reason));
        }
        let fits = |pair: Pair| pair.queries.len() <= op.max_length && pair.keys.len() <= op.max_keys;
        if op.bias && !pairs.iter().all(fits) {
            let reason = format!("a sequence exceeds {} queries or {} keys", op.max_length, op.max_keys);
            return Err(call.error(format!("{reason}, which the bias is made for")));
        }
        Ok(pairs)
    }

    pub(super) fn count(self) -> usize {
        self.queries.count()
    }

    pub(super) fn pair(self, sequence: usize) -> Pair {
        Pair { queries: self.queries.tokens(sequence), keys: self.keys.tokens(sequence) }
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Pair> {
        (0..self.count()).map(move |sequence| self.pair(sequence))
    }

    /// Tiles of queries in all sequences.
    pub(super) fn query_tiles(self) -> usize {
        self.iter().map(|pair| pair.query_tiles()).sum()
    }

    /// The sequence that the `index`th tile of queries belongs to, and the tile's number within it.
    pub(super) fn tile(self, mut index: usize) -> (Pair, usize) {
        for pair in self.iter() {
            if index < pair.query_tiles() {
                return (pair, index);
            }
            index -= pair.query_tiles();
        }
        unreachable!("there are as many tiles as tasks")
    }
}

/// One sequence of queries and the keys that it may see.
pub(super) struct Pair {
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}

impl Pair {
    pub(super) fn query_tiles(&self) -> usize {
        self.queries.len().div_ceil(TILE)
    }

    pub(super) fn key_tiles(&self) -> usize {
        self.keys.len().div_ceil(TILE)
    }

    /// Tiles of keys that a tile of queries sees any of. With a window there may be a query among them that sees none.
    pub(super) fn visible_tiles(&self, tile: usize, mask: Mask) -> Range<usize> {
        let Mask::Causal { window } = mask else { return 0..self.key_tiles() };
        let first_query = tile * TILE;
        let oldest = window.map_or(0, |w| (first_query + 1).saturating_sub(w));
        oldest / TILE..(tile + 1).min(self.key_tiles())
    }

    /// The first tile of queries that sees any of a tile of keys, if one does.
    pub(super) fn first_seeing(&self, key_tile: usize, mask: Mask) -> Option<usize> {
        let first = if mask == Mask::Full { 0 } else { key_tile };
        (first < self.query_tiles()).then_some(first)
    }

    /// How many distances lie between its queries and its keys.
    pub(super) fn distances(&self) -> usize {
        if self.queries.is_empty() || self.keys.is_empty() { 0 } else { self.queries.len() + self.keys.len() - 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_bound_the_tiles() {
        let pair = Pair { queries: 0..300, keys: 0..300 };
        let visible = |tile, window| pair.visible_tiles(tile, Mask::Causal { window });
        assert_eq!(visible(0, None), 0..1);
        assert_eq!(visible(3, None), 0..4);
        // The first query of tile 3 is number 192; with a window of 64 it sees 129 and later.
        assert_eq!(visible(3, Some(64)), 2..4);
        assert_eq!(visible(3, Some(1)), 3..4);
        assert_eq!(visible(3, Some(66)), 1..4);
        assert_eq!(pair.visible_tiles(3, Mask::Full), 0..5);
    }

    #[test]
    fn keys_of_another_length_bound_them_too() {
        let pair = Pair { queries: 0..300, keys: 0..70 };
        assert_eq!(pair.visible_tiles(3, Mask::Causal { window: None }), 0..2);
        assert!(pair.visible_tiles(3, Mask::Causal { window: Some(64) }).is_empty());
        assert_eq!(pair.visible_tiles(3, Mask::Full), 0..2);
        let longer = Pair { queries: 0..70, keys: 0..300 };
        let first = |mask| [1, 2, 4].map(|tile| longer.first_seeing(tile, mask));
        assert_eq!(first(Mask::Causal { window: None }), [Some(1), None, None]);
        assert_eq!(first(Mask::Full), [Some(0); 3]);
        assert_eq!(Pair { queries: 0..0, keys: 0..9 }.first_seeing(0, Mask::Full), None);
    }
}
