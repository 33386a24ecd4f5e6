//! Its gradients: a task is one key head of one sequence, with all query heads that share it, so that
//! no two tasks add to the same keys and values.

use std::ops::Range;

use plimsoll_graph::ops::{AttentionGrad, Heads};
use plimsoll_runtime::RuntimeError;

use super::{HeadRows, Sequences, TILE, hide, needs_mask, score_tile, scratch_len, visible_tiles};
use crate::args::{Call, Matrix};
use crate::math::exp;
use crate::tile::{Part, TileProduct};
use crate::vector::{sum, vectorized};

pub(crate) fn attention_grad(op: &AttentionGrad, call: &Call) -> Result<(), RuntimeError> {
    let op = &op.0;
    let (qkv, out, lse): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let (d_out, d_qkv): (Matrix, Matrix) = (call.input(3)?, call.output(0)?);
    let sequences = Sequences::new(call, 4, qkv.rows)?;
    let scratch: Matrix = call.workspace(call.workers.count(), scratch_len(op.heads.head_dim))?;
    let job = Gradient { heads: op.heads, scale: op.scale, window: op.window(), qkv, out, lse, d_out, d_qkv };
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
