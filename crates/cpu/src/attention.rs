//! Causal attention over flat tokens, a tile of queries by a tile of keys at a time.
//!
//! Scores are kept with queries side by side, `scores[key][query]`: the softmax then runs over whole
//! vectors of queries, and only the queries need to be transposed, once for all their keys.

mod forward;
mod gradient;

use std::ops::Range;

use plimsoll_graph::ops::{KEY_TILE, QUERY_TILE};
use plimsoll_runtime::RuntimeError;

pub(crate) use forward::attention;
pub(crate) use gradient::attention_grad;

use crate::args::{Call, Matrix};
use crate::tile::{Part, TileProduct, copy_rows, transpose};

/// Both tiles are equally long, so the causal diagonal runs through tiles from corner to corner.
const TILE: usize = QUERY_TILE;
const _: () = assert!(QUERY_TILE == KEY_TILE);

/// One worker's scratch: two tiles of scores, six of head rows, four numbers per query.
fn scratch_len(head_dim: usize) -> usize {
    2 * TILE * TILE + 6 * TILE * head_dim + 4 * TILE
}

/// Sequences of the micro-batch by their boundaries.
#[derive(Clone, Copy)]
struct Sequences<'a>(&'a [i32]);

impl<'a> Sequences<'a> {
    fn new(call: &Call<'a>, input: usize, tokens: usize) -> Result<Self, RuntimeError> {
        // SAFETY: nobody writes to the boundaries while a step runs.
        let bounds: &[i32] = unsafe { call.input::<i32>(input)?.slice() };
        let ordered = bounds.is_sorted() && bounds.first().is_some_and(|&first| first >= 0);
        if !ordered || bounds.last().is_some_and(|&last| last as usize > tokens) {
            return Err(call.error(format!("the sequence boundaries do not divide {tokens} tokens")));
        }
        Ok(Self(bounds))
    }

    fn count(self) -> usize {
        self.0.len() - 1
    }

    fn tokens(self, sequence: usize) -> Range<usize> {
        self.0[sequence] as usize..self.0[sequence + 1] as usize
    }

    fn tiles(self) -> usize {
        (0..self.count()).map(|s| self.tokens(s).len().div_ceil(TILE)).sum()
    }

    /// The sequence that the `index`th tile of all belongs to, and the tile's number within it.
    fn tile(self, mut index: usize) -> (Range<usize>, usize) {
        for sequence in 0..self.count() {
            let tokens = self.tokens(sequence);
            let tiles = tokens.len().div_ceil(TILE);
            if index < tiles {
                return (tokens, index);
            }
            index -= tiles;
        }
        unreachable!("there are as many tiles as tasks")
    }

    /// Tokens that belong to no sequence.
    fn outside(self, tokens: usize) -> [Range<usize>; 2] {
        [0..self.0[0] as usize, self.0[self.count()] as usize..tokens]
    }
}

/// Tiles of keys that a tile of queries sees any of.
fn visible_tiles(tile: usize, window: Option<usize>) -> Range<usize> {
    let first_query = tile * TILE;
    let oldest = window.map_or(0, |w| (first_query + 1).saturating_sub(w));
    oldest / TILE..tile + 1
}

/// The rows of one tile, `head_dim` columns of each.
#[derive(Clone, Copy)]
struct HeadRows {
    start: *const f32,
    stride: usize,
    rows: usize,
    head_dim: usize,
}

impl HeadRows {
    /// Rows of a head's tile: `column` is the head's first.
    fn new(matrix: Matrix, column: usize, tokens: &Range<usize>, tile: usize, head_dim: usize) -> Self {
        let start = tokens.start + tile * TILE;
        let rows = TILE.min(tokens.end - start);
        Self { start: matrix.row(start).wrapping_add(column), stride: matrix.cols, rows, head_dim }
    }

    /// # Safety
    /// `to` has room for a tile.
    unsafe fn copy_to(self, to: *mut f32) {
        // SAFETY: the caller vouches for the room, the matrix for the rows.
        unsafe { copy_rows(self.rows, self.head_dim, self.start, self.stride, to) };
    }

    /// `to[column][row] = factor·self[row][column]`, rows of the result `TILE` long.
    ///
    /// # Safety
    /// `to` has room for a tile.
    unsafe fn transpose_to(self, factor: f32, to: *mut f32) {
        // SAFETY: the caller vouches for the room, the matrix for the rows.
        unsafe { transpose(self.rows, self.head_dim, self.start, self.stride, factor, to, TILE) };
    }
}

/// Writes `value` to scores that a query may not see. `ahead` is how far the first query lies
/// behind the first key.
///
/// # Safety
/// `scores` must be a tile.
unsafe fn hide(scores: *mut f32, keys: usize, ahead: usize, window: Option<usize>, value: f32) {
    for key in 0..keys {
        // Queries before the key, and queries that have left it behind.
        let before = key.saturating_sub(ahead).min(TILE);
        let left = window.map_or(TILE, |w| (key + w).saturating_sub(ahead).min(TILE));
        // SAFETY: the caller vouches for the tile.
        let line = unsafe { std::slice::from_raw_parts_mut(scores.add(key * TILE), TILE) };
        line[..before].fill(value);
        line[left..].fill(value);
    }
}

/// Must a tile be masked, and does it lie on the diagonal?
fn needs_mask(query_tile: usize, key_tile: usize, window: Option<usize>) -> bool {
    let last_distance = (query_tile + 1 - key_tile) * TILE - 1;
    query_tile == key_tile || window.is_some_and(|w| last_distance >= w)
}

/// `scores = keys·queriesᵀ`, for all vectors that hold a query.
fn score_tile(
    keys: *const f32,
    q_transposed: *const f32,
    key_rows: usize,
    query_rows: usize,
    head_dim: usize,
    on_diagonal: bool,
    scores: *mut f32,
) -> TileProduct {
    TileProduct {
        rows: key_rows,
        cols: query_rows.next_multiple_of(16),
        depth: head_dim,
        a: keys,
        a_row: head_dim,
        a_col: 1,
        b: q_transposed,
        b_row: TILE,
        c: scores,
        c_row: TILE,
        add: false,
        part: if on_diagonal { Part::Above } else { Part::All },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_bound_the_tiles() {
        assert_eq!(visible_tiles(0, None), 0..1);
        assert_eq!(visible_tiles(3, None), 0..4);
        // The first query of tile 3 is number 192; with a window of 64 it sees 129 and later.
        assert_eq!(visible_tiles(3, Some(64)), 2..4);
        assert_eq!(visible_tiles(3, Some(1)), 3..4);
        assert_eq!(visible_tiles(3, Some(66)), 1..4);
        assert!(!needs_mask(3, 2, None) && needs_mask(3, 3, None));
        assert!(needs_mask(3, 2, Some(127)) && !needs_mask(3, 2, Some(128)));
    }

    #[test]
    fn hidden_scores_are_those_a_query_may_not_see() {
        for (ahead, window) in [(0, None), (0, Some(5)), (64, Some(70)), (128, Some(130))] {
            let mut scores = vec![0.0f32; TILE * TILE];
            // SAFETY: a tile.
            unsafe { hide(scores.as_mut_ptr(), TILE, ahead, window, 1.0) };
            for key in 0..TILE {
                for query in 0..TILE {
                    let at = query + ahead;
                    let seen = key <= at && window.is_none_or(|w| at - key < w);
                    assert_eq!(scores[key * TILE + query] == 0.0, seen, "{ahead} {window:?} {key} {query}");
                }
            }
        }
    }
}
