//! Attention itself: a task is one head of one tile of queries.

use plimsoll_graph::ops::{Attention, Heads, Mask};
use plimsoll_runtime::RuntimeError;

use super::scores::Shaping;
use super::sequences::{Pair, Pairs};
use super::{Operands, TILE, ahead, hide, needs_mask, on_diagonal, score_tile, scratch_len};
use crate::args::{Call, Matrix};
use crate::math::exp;
use crate::tile::{Part, TileProduct};
use crate::vector::{fill, vectorized};

pub(crate) fn attention(op: &Attention, call: &Call) -> Result<(), RuntimeError> {
    let operands = Operands::new(op, |index| call.input(index))?;
    let (out, lse): (Matrix, Matrix) = (call.output(0)?, call.output(1)?);
    let pairs = Pairs::new(op, call, op.operands(), &operands)?;
    let shaping = Shaping::new(op, call, op.operands() + op.boundaries())?;
    let scratch: Matrix = call.workspace(call.workers.count(), scratch_len(op.heads.head_dim))?;
    let job = Forward { heads: op.heads, scale: op.scale, mask: op.mask, shaping, operands, out, lse };
    call.workers.for_each(pairs.query_tiles() * op.heads.query, |worker, task| {
        let (pair, tile) = pairs.tile(task / op.heads.query);
        // SAFETY: the scratch is the worker's alone, the tile's rows of the output the task's.
        unsafe { job.tile(&pair, tile, task % op.heads.query, scratch.row(worker)) };
    });
    for rows in pairs.queries.outside(out.rows) {
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
    mask: Mask,
    shaping: Shaping,
    operands: Operands,
    out: Matrix,
    lse: Matrix,
}

impl Forward {
    /// One head's results for one tile of queries.
    ///
    /// # Safety
    /// `scratch` has `scratch_len` floats that nobody else touches, and the same holds for the results.
    unsafe fn tile(&self, pair: &Pair, tile: usize, head: usize, scratch: *mut f32) {
        let Heads { query, kv, head_dim } = self.heads;
        let kv_head = head / (query / kv);
        let queries = self.operands.q.tile(head, &pair.queries, tile);
        let visible = pair.visible_tiles(tile, self.mask);
        // SAFETY: the parts lie one behind another in the scratch; all addresses stay inside them.
        unsafe {
            let scores = scratch;
            let q_transposed = scores.add(TILE * TILE);
            let (k, v) = (q_transposed.add(TILE * head_dim), q_transposed.add(2 * TILE * head_dim));
            let result = q_transposed.add(3 * TILE * head_dim);
            let softmax = Softmax::new(result.add(TILE * head_dim));
            // Behind the softmax: the gradients need more scratch than this, so there is enough.
            let band = result.add(TILE * head_dim + 3 * TILE);
            queries.transpose_to(self.scale, q_transposed);
            for key_tile in visible.clone() {
                let keys = self.operands.k.tile(kv_head, &pair.keys, key_tile);
                keys.copy_to(k);
                self.operands.v.tile(kv_head, &pair.keys, key_tile).copy_to(v);
                let on_diagonal = on_diagonal(self.mask, tile, key_tile);
                let first = key_tile == visible.start;
                score_tile(k, q_transposed, keys.rows, queries.rows, head_dim, on_diagonal, scores).run();
                self.shaping.load_band(head, tile, key_tile, band);
                self.shaping.apply(keys.rows, scores, band);
                if needs_mask(self.mask, tile, key_tile) {
                    hide(scores, keys.rows, ahead(tile, key_tile), self.mask);
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
            self.write(pair.queries.start + tile * TILE, queries.rows, head, result, softmax);
        }
    }

    /// Divides the results of a tile's rows by their sums.
    ///
    /// # Safety
    /// `result` has these rows, and those of the outputs are the caller's to write.
    unsafe fn write(&self, first_row: usize, rows: usize, head: usize, result: *const f32, softmax: Softmax) {
        let head_dim = self.heads.head_dim;
        for row in 0..rows {
            // SAFETY: the caller vouches for the rows.
            unsafe {
                let (peak, total) = (*softmax.peak.add(row), *softmax.total.add(row));
                let lse = self.lse.row(first_row + row).add(head);
                let to = self.out.row(first_row + row).add(head * head_dim);
                if total == 0.0 {
                    // A query that sees no key. If none of the tile does, the results were never written.
                    *lse = 0.0;
                    to.write_bytes(0, head_dim);
                } else {
                    *lse = peak + total.ln();
                    scaled_copy(head_dim, result.add(row * head_dim), 1.0 / total, to);
                }
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
