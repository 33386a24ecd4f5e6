//! Causal attention over flat tokens, a tile of queries by a tile of keys at a time.
//!
//! Scores are kept with queries side by side, `scores[key][query]`: the softmax then runs over whole
//! vectors of queries, and only the queries need to be transposed, once for all their keys.

use std::ops::Range;

use plimsoll_graph::ops::{Attention, AttentionGrad, Heads, KEY_TILE, QUERY_TILE};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};
use crate::math::exp;
use crate::tile::{Part, TileProduct, copy_rows, transpose};
use crate::vector::{fill, sum, vectorized};

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

pub(crate) fn attention(op: &Attention, call: &Call) -> Result<(), RuntimeError> {
    let (qkv, out, lse): (Matrix, Matrix, Matrix) = (call.input(0)?, call.output(0)?, call.output(1)?);
    let sequences = Sequences::new(call, 1, qkv.rows)?;
    let scratch: Matrix = call.workspace(call.workers.count(), scratch_len(op.heads.head_dim))?;
    let job = Forward { heads: op.heads, scale: op.scale, window: op.window, qkv, out, lse };
    call.workers.for_each(sequences.tiles() * op.heads.query, |worker, task| {
        let (tokens, tile) = sequences.tile(task / op.heads.query);
        // SAFETY: the scratch is the worker's alone, the tile's rows of the output the task's.
        unsafe { job.tile(tokens, tile, task % op.heads.query, scratch.row(worker)) };
    });
    for rows in sequences.outside(qkv.rows) {
        // SAFETY: rows that no task wrote.
        unsafe {
            out.row(rows.start).write_bytes(0, rows.len() * out.cols);
            lse.row(rows.start).write_bytes(0, rows.len() * lse.cols);
        }
    }
    Ok(())
}

struct Forward {
    heads: Heads,
    scale: f32,
    window: Option<usize>,
    qkv: Matrix,
    out: Matrix,
    lse: Matrix,
}

impl Forward {
    /// One head's results for one tile of queries.
    ///
    /// # Safety
    /// `scratch` has `scratch_len` floats that nobody else touches, and the same holds for the results.
    unsafe fn tile(&self, tokens: Range<usize>, tile: usize, head: usize, scratch: *mut f32) {
        let Heads { query, kv, head_dim } = self.heads;
        let kv_head = head / (query / kv);
        let rows = |column, tile| HeadRows::new(self.qkv, column * head_dim, &tokens, tile, head_dim);
        let queries = rows(head, tile);
        // SAFETY: the parts lie one behind another in the scratch; all addresses stay inside them.
        unsafe {
            let scores = scratch;
            let q_transposed = scores.add(TILE * TILE);
            let (k, v) = (q_transposed.add(TILE * head_dim), q_transposed.add(2 * TILE * head_dim));
            let result = q_transposed.add(3 * TILE * head_dim);
            let softmax = Softmax::new(result.add(TILE * head_dim));
            queries.transpose_to(self.scale, q_transposed);
            for key_tile in visible_tiles(tile, self.window) {
                let keys = rows(query + kv_head, key_tile);
                keys.copy_to(k);
                rows(query + kv + kv_head, key_tile).copy_to(v);
                let on_diagonal = key_tile == tile;
                let first = key_tile == visible_tiles(tile, self.window).start;
                score_tile(k, q_transposed, keys.rows, queries.rows, head_dim, on_diagonal, scores).run();
                if needs_mask(tile, key_tile, self.window) {
                    hide(scores, keys.rows, (tile - key_tile) * TILE, self.window, f32::NEG_INFINITY);
                }
                softmax.absorb(scores, keys.rows);
                if !first {
                    scale_rows(queries.rows, head_dim, result, softmax.shrink);
                }
                TileProduct {
                    rows: queries.rows,
                    cols: head_dim,
                    depth: keys.rows,
                    a: scores,
                    a_row: 1,
                    a_col: TILE,
                    b: v,
                    b_row: head_dim,
                    c: result,
                    c_row: head_dim,
                    add: !first,
                    part: if on_diagonal { Part::DepthToRow } else { Part::All },
                }
                .run();
            }
            let first_row = tokens.start + tile * TILE;
            for row in 0..queries.rows {
                let (peak, total) = (*softmax.peak.add(row), *softmax.total.add(row));
                *self.lse.row(first_row + row).add(head) = peak + total.ln();
                let to = self.out.row(first_row + row).add(head * head_dim);
                scaled_copy(head_dim, result.add(row * head_dim), 1.0 / total, to);
            }
        }
    }
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

/// The running softmax of a tile of queries: largest score so far, sum of exponentials below it, and
/// the factor by which the last tile of keys shrank what came before.
#[derive(Clone, Copy)]
struct Softmax {
    peak: *mut f32,
    total: *mut f32,
    shrink: *mut f32,
}

impl Softmax {
    /// # Safety
    /// `scratch` has room for three numbers per query.
    unsafe fn new(scratch: *mut f32) -> Self {
        // SAFETY: the caller vouches for the room.
        unsafe {
            std::slice::from_raw_parts_mut(scratch, TILE).fill(f32::NEG_INFINITY);
            std::slice::from_raw_parts_mut(scratch.add(TILE), TILE).fill(0.0);
            Self { peak: scratch, total: scratch.add(TILE), shrink: scratch.add(2 * TILE) }
        }
    }

    /// Turns scores into exponentials.
    ///
    /// # Safety
    /// `scores` must be a tile, with `keys` rows filled.
    unsafe fn absorb(&self, scores: *mut f32, keys: usize) {
        // SAFETY: the caller vouches for the tile.
        unsafe { absorb_scores(scores, keys, self.peak.cast(), self.total.cast(), self.shrink.cast()) };
    }
}

vectorized! {
    unsafe fn absorb_scores(
        scores: *mut f32,
        keys: usize,
        peak: *mut [f32; TILE],
        total: *mut [f32; TILE],
        shrink: *mut [f32; TILE],
    ) {
        // SAFETY: the caller vouches for the tile and the three lines.
        unsafe {
            let scores = std::slice::from_raw_parts_mut(scores.cast::<[f32; TILE]>(), keys);
            let old = *peak;
            let mut best = old;
            for line in scores.iter() {
                for (best, &score) in best.iter_mut().zip(line) {
                    *best = if score > *best { score } else { *best };
                }
            }
            // A query that has seen nothing yet must not subtract infinity from infinity.
            let mut base = best;
            for base in &mut base {
                *base = if *base == f32::NEG_INFINITY { 0.0 } else { *base };
            }
            let mut factor = [0.0; TILE];
            for ((factor, old), base) in factor.iter_mut().zip(&old).zip(&base) {
                *factor = exp(old - base);
            }
            let mut sums = [0.0; TILE];
            for line in scores.iter_mut() {
                for ((score, base), sum) in line.iter_mut().zip(&base).zip(&mut sums) {
                    *score = exp(*score - base);
                    *sum += *score;
                }
            }
            for ((sum, before), factor) in sums.iter_mut().zip(&*total).zip(&factor) {
                *sum = before.mul_add(*factor, *sum);
            }
            *peak = best;
            *total = sums;
            *shrink = factor;
        }
    }
}

vectorized! {
    unsafe fn scale_rows(rows: usize, cols: usize, x: *mut f32, factors: *const f32) {
        for row in 0..rows {
            // SAFETY: the caller vouches for the rows.
            unsafe {
                let factor = *factors.add(row);
                let line = x.add(row * cols);
                fill(cols, line, |i| *line.add(i) * factor);
            }
        }
    }
}

vectorized! {
    unsafe fn scaled_copy(len: usize, from: *const f32, factor: f32, to: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, to, |i| *from.add(i) * factor) };
    }
}

pub(crate) fn attention_grad(op: &AttentionGrad, call: &Call) -> Result<(), RuntimeError> {
    let op = &op.0;
    let (qkv, out, lse): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let (d_out, d_qkv): (Matrix, Matrix) = (call.input(3)?, call.output(0)?);
    let sequences = Sequences::new(call, 4, qkv.rows)?;
    let scratch: Matrix = call.workspace(call.workers.count(), scratch_len(op.heads.head_dim))?;
    let job = Gradient { heads: op.heads, scale: op.scale, window: op.window, qkv, out, lse, d_out, d_qkv };
    call.workers.for_each(sequences.count() * op.heads.kv, |worker, task| {
        let tokens = sequences.tokens(task / op.heads.kv);
        // SAFETY: the scratch is the worker's alone; the heads' columns of these rows are the task's.
        unsafe { job.kv_head(tokens, task % op.heads.kv, scratch.row(worker)) };
    });
    for rows in sequences.outside(qkv.rows) {
        // SAFETY: rows that no task wrote.
        unsafe { d_qkv.row(rows.start).write_bytes(0, rows.len() * d_qkv.cols) };
    }
    Ok(())
}

struct Gradient {
    heads: Heads,
    scale: f32,
    window: Option<usize>,
    qkv: Matrix,
    out: Matrix,
    lse: Matrix,
    d_out: Matrix,
    d_qkv: Matrix,
}

/// Where one worker keeps what belongs to a tile of queries and to a tile of keys.
#[derive(Clone, Copy)]
struct GradScratch {
    /// Probabilities, and the gradient of the scores.
    p: *mut f32,
    ds: *mut f32,
    q: *mut f32,
    q_transposed: *mut f32,
    d_out: *mut f32,
    d_out_transposed: *mut f32,
    k: *mut f32,
    v: *mut f32,
    lse: *mut f32,
    /// Σ d_out·out of each query.
    delta: *mut f32,
}

impl GradScratch {
    fn new(start: *mut f32, head_dim: usize) -> Self {
        let tile = |index: usize| start.wrapping_add(2 * TILE * TILE + index * TILE * head_dim);
        Self {
            p: start,
            ds: start.wrapping_add(TILE * TILE),
            q: tile(0),
            q_transposed: tile(1),
            d_out: tile(2),
            d_out_transposed: tile(3),
            k: tile(4),
            v: tile(5),
            lse: tile(6),
            delta: tile(6).wrapping_add(TILE),
        }
    }
}

impl Gradient {
    /// All gradients of one key head and of the query heads that share it, in one sequence.
    ///
    /// # Safety
    /// `scratch` has `scratch_len` floats that nobody else touches, and the same holds for the results.
    unsafe fn kv_head(&self, tokens: Range<usize>, kv_head: usize, scratch: *mut f32) {
        let group = self.heads.query / self.heads.kv;
        let scratch = GradScratch::new(scratch, self.heads.head_dim);
        for tile in 0..tokens.len().div_ceil(TILE) {
            for member in 0..group {
                let head = kv_head * group + member;
                // SAFETY: the caller's promises are passed on.
                unsafe {
                    let rows = self.load_queries(&tokens, tile, head, scratch);
                    for key_tile in visible_tiles(tile, self.window) {
                        self.tile_pair(&tokens, (tile, rows), key_tile, (kv_head, head), member == 0, scratch);
                    }
                }
            }
        }
    }

    /// Brings a tile of queries and of `d_out` into the scratch, both ways round. Returns its rows.
    ///
    /// # Safety
    /// As for [`Gradient::kv_head`].
    unsafe fn load_queries(&self, tokens: &Range<usize>, tile: usize, head: usize, scratch: GradScratch) -> usize {
        let head_dim = self.heads.head_dim;
        let queries = HeadRows::new(self.qkv, head * head_dim, tokens, tile, head_dim);
        let d_out = HeadRows::new(self.d_out, head * head_dim, tokens, tile, head_dim);
        let first_row = tokens.start + tile * TILE;
        // SAFETY: each goes to a tile of its own.
        unsafe {
            queries.transpose_to(self.scale, scratch.q_transposed);
            d_out.transpose_to(1.0, scratch.d_out_transposed);
            queries.copy_to(scratch.q);
            d_out.copy_to(scratch.d_out);
            for row in 0..queries.rows {
                *scratch.lse.add(row) = *self.lse.row(first_row + row).add(head);
                let out = self.out.row(first_row + row).add(head * head_dim);
                *scratch.delta.add(row) = dot(head_dim, scratch.d_out.add(row * head_dim), out);
            }
        }
        queries.rows
    }

    /// What one tile of queries and one of keys give each other. `first_head`: no other head has
    /// added to these keys yet.
    ///
    /// # Safety
    /// As for [`Gradient::kv_head`], with the tile of queries loaded.
    unsafe fn tile_pair(
        &self,
        tokens: &Range<usize>,
        (tile, queries): (usize, usize),
        key_tile: usize,
        (kv_head, head): (usize, usize),
        first_head: bool,
        scratch: GradScratch,
    ) {
        let Heads { query, kv, head_dim } = self.heads;
        let (k_column, v_column) = ((query + kv_head) * head_dim, (query + kv + kv_head) * head_dim);
        let keys = HeadRows::new(self.qkv, k_column, tokens, key_tile, head_dim);
        let values = HeadRows::new(self.qkv, v_column, tokens, key_tile, head_dim);
        let on_diagonal = key_tile == tile;
        let d_rows = |tile: usize, column: usize| self.d_qkv.row(tokens.start + tile * TILE).wrapping_add(column);
        // SAFETY: tiles of the scratch, and the rows of the results that belong to these tiles.
        unsafe {
            keys.copy_to(scratch.k);
            values.copy_to(scratch.v);
            score_tile(scratch.k, scratch.q_transposed, keys.rows, queries, head_dim, on_diagonal, scratch.p).run();
            if needs_mask(tile, key_tile, self.window) {
                hide(scratch.p, keys.rows, (tile - key_tile) * TILE, self.window, f32::NEG_INFINITY);
            }
            score_tile(scratch.v, scratch.d_out_transposed, keys.rows, queries, head_dim, on_diagonal, scratch.ds)
                .run();
            score_gradients(keys.rows, scratch.p, scratch.ds, scratch.lse.cast(), scratch.delta.cast(), self.scale);
            let onto_keys = TileProduct {
                rows: keys.rows,
                cols: head_dim,
                depth: queries,
                a: scratch.p,
                a_row: TILE,
                a_col: 1,
                b: scratch.d_out,
                b_row: head_dim,
                c: d_rows(key_tile, v_column),
                c_row: self.d_qkv.cols,
                add: !(first_head && on_diagonal),
                part: if on_diagonal { Part::DepthFromRow } else { Part::All },
            };
            onto_keys.run();
            TileProduct { a: scratch.ds, b: scratch.q, c: d_rows(key_tile, k_column), ..onto_keys }.run();
            TileProduct {
                rows: queries,
                depth: keys.rows,
                a: scratch.ds,
                a_row: 1,
                a_col: TILE,
                b: scratch.k,
                c: d_rows(tile, head * head_dim),
                add: key_tile != visible_tiles(tile, self.window).start,
                part: if on_diagonal { Part::DepthToRow } else { Part::All },
                ..onto_keys
            }
            .run();
        }
    }
}

vectorized! {
    unsafe fn dot(len: usize, a: *const f32, b: *const f32) -> f32 {
        // SAFETY: the caller vouches for `len` elements of each.
        sum(len, |i, partial| unsafe { (*a.add(i)).mul_add(*b.add(i), partial) })
    }
}

vectorized! {
    /// Scores become probabilities `p = exp(score - lse)`, and `ds` (which holds the probabilities'
    /// gradient) the scores' own: `p·(ds - delta)·scale`. Hidden scores give zero for both.
    unsafe fn score_gradients(
        keys: usize,
        p: *mut f32,
        ds: *mut f32,
        lse: *const [f32; TILE],
        delta: *const [f32; TILE],
        scale: f32,
    ) {
        // SAFETY: the caller vouches for two tiles and two lines, all apart.
        unsafe {
            let p = std::slice::from_raw_parts_mut(p.cast::<[f32; TILE]>(), keys);
            let ds = std::slice::from_raw_parts_mut(ds.cast::<[f32; TILE]>(), keys);
            let (lse, delta) = (*lse, *delta);
            for (p, ds) in p.iter_mut().zip(ds) {
                for query in 0..TILE {
                    let chance = exp(p[query] - lse[query]);
                    p[query] = chance;
                    let gradient = chance * (ds[query] - delta[query]) * scale;
                    // Parts of `ds` that no query may see were never computed.
                    ds[query] = if chance == 0.0 { 0.0 } else { gradient };
                }
            }
        }
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
