//! Attention itself: a task is one head of one tile of queries.

use std::ops::Range;

use plimsoll_graph::ops::{Attention, Heads};
use plimsoll_runtime::RuntimeError;

use super::{HeadRows, Sequences, TILE, hide, needs_mask, score_tile, scratch_len, visible_tiles};
use crate::args::{Call, Matrix};
use crate::math::exp;
use crate::tile::{Part, TileProduct};
use crate::vector::{fill, vectorized};

pub(crate) fn attention(op: &Attention, call: &Call) -> Result<(), RuntimeError> {
    let (qkv, out, lse): (Matrix, Matrix, Matrix) = (call.input(0)?, call.output(0)?, call.output(1)?);
    let sequences = Sequences::new(call, 1, qkv.rows)?;
    let scratch: Matrix = call.workspace(call.workers.count(), scratch_len(op.heads.head_dim))?;
    let job = Forward { heads: op.heads, scale: op.scale, window: op.window(), qkv, out, lse };
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
