//! Attention over flat tokens, a tile of queries by a tile of keys at a time.
//!
//! Scores are kept with queries side by side, `scores[key][query]`: the softmax then runs over whole
//! vectors of queries, and only the queries need to be transposed, once for all their keys.

mod distances;
mod forward;
mod gradient;
mod scores;
mod sequences;

use std::ops::Range;

use plimsoll_graph::ops::{Attention, KEY_TILE, Mask, QUERY_TILE, QkvLayout};
use plimsoll_runtime::RuntimeError;

pub(crate) use forward::attention;
pub(crate) use gradient::attention_grad;

use crate::args::Matrix;
use crate::tile::{Part, TileProduct, copy_rows, transpose};

/// Both tiles are equally long, so the causal diagonal runs through tiles from corner to corner.
const TILE: usize = QUERY_TILE;
const _: () = assert!(QUERY_TILE == KEY_TILE);

/// One worker's scratch: two tiles of scores, six of head rows, four numbers per query.
fn scratch_len(head_dim: usize) -> usize {
    2 * TILE * TILE + 6 * TILE * head_dim + 4 * TILE
}

/// Columns of a matrix: the queries', the keys' or the values', all their heads side by side.
#[derive(Clone, Copy)]
struct HeadColumns {
    matrix: Matrix,
    first: usize,
    head_dim: usize,
}

impl HeadColumns {
    /// One head's rows in a tile of the sequence that these tokens are.
    fn tile(&self, head: usize, tokens: &Range<usize>, tile: usize) -> HeadRows {
        HeadRows::new(self.matrix, self.first + head * self.head_dim, tokens, tile, self.head_dim)
    }
}

/// Queries, keys and values, or their gradients.
#[derive(Clone, Copy)]
struct Operands {
    q: HeadColumns,
    k: HeadColumns,
    v: HeadColumns,
}

impl Operands {
    /// In the matrices that the layout has, which `matrix` gives by their number.
    fn new(op: &Attention, matrix: impl Fn(usize) -> Result<Matrix, RuntimeError>) -> Result<Self, RuntimeError> {
        let (q, kv) = (op.heads.query_cols(), op.heads.kv_cols());
        let [q, k, v] = match op.layout {
            QkvLayout::Fused => [(0, 0), (0, q), (0, q + kv)],
            QkvLayout::FusedKeyValue => [(0, 0), (1, 0), (1, kv)],
            QkvLayout::Separate => [(0, 0), (1, 0), (2, 0)],
        };
        let head_dim = op.heads.head_dim;
        let columns = |(index, first)| matrix(index).map(|matrix| HeadColumns { matrix, first, head_dim });
        Ok(Self { q: columns(q)?, k: columns(k)?, v: columns(v)? })
    }
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
    /// The rows must be the caller's to write.
    unsafe fn clear(self) {
        for row in 0..self.rows {
            // SAFETY: the caller vouches for the rows.
            unsafe { self.start.wrapping_add(row * self.stride).cast_mut().write_bytes(0, self.head_dim) };
        }
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

/// The queries of a tile that see a key. `ahead` is how far the first query lies behind the first key.
fn seeing(mask: Mask, key: usize, ahead: usize) -> Range<usize> {
    let Mask::Causal { window } = mask else { return 0..TILE };
    // Not queries before the key, and none that has left it behind.
    let first = key.saturating_sub(ahead).min(TILE);
    let end = window.map_or(TILE, |w| (key + w).saturating_sub(ahead).min(TILE));
    first..end
}

/// Writes negative infinity to scores that a query may not see.
///
/// # Safety
/// `scores` must be a tile.
unsafe fn hide(scores: *mut f32, keys: usize, ahead: usize, mask: Mask) {
    for key in 0..keys {
        let seeing = seeing(mask, key, ahead);
        // SAFETY: the caller vouches for the tile.
        let line = unsafe { std::slice::from_raw_parts_mut(scores.add(key * TILE), TILE) };
        line[..seeing.start].fill(f32::NEG_INFINITY);
        line[seeing.end..].fill(f32::NEG_INFINITY);
    }
}

/// How far the first query of a tile lies behind the first key of another, where a mask asks for it.
fn ahead(query_tile: usize, key_tile: usize) -> usize {
    query_tile.saturating_sub(key_tile) * TILE
}

/// Does the causal diagonal run through a tile?
fn on_diagonal(mask: Mask, query_tile: usize, key_tile: usize) -> bool {
    mask != Mask::Full && query_tile == key_tile
}

/// Must a tile be masked?
fn needs_mask(mask: Mask, query_tile: usize, key_tile: usize) -> bool {
    let Mask::Causal { window } = mask else { return false };
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

    const fn causal(window: Option<usize>) -> Mask {
        Mask::Causal { window }
    }

    #[test]
    fn tiles_are_masked_where_a_query_may_not_see_all() {
        assert!(!needs_mask(causal(None), 3, 2) && needs_mask(causal(None), 3, 3));
        assert!(needs_mask(causal(Some(127)), 3, 2) && !needs_mask(causal(Some(128)), 3, 2));
        assert!(!needs_mask(Mask::Full, 3, 3) && !needs_mask(Mask::Full, 0, 7));
    }

    #[test]
    fn hidden_scores_are_those_a_query_may_not_see() {
        for (ahead, window) in [(0, None), (0, Some(5)), (64, Some(70)), (128, Some(130)), (128, Some(40))] {
            let mut scores = vec![0.0f32; TILE * TILE];
            // SAFETY: a tile.
            unsafe { hide(scores.as_mut_ptr(), TILE, ahead, causal(window)) };
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
