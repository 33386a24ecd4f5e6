//! Its gradients: a task is one key head of one sequence, with all query heads that share it, so that
//! no two tasks add to the same keys and values.

use plimsoll_graph::ops::{AttentionGrad, Heads, Mask};
use plimsoll_runtime::RuntimeError;

use super::distances::DistanceSums;
use super::scores::{ScoreTile, Shaping};
use super::sequences::{Pair, Pairs};
use super::{HeadRows, Operands, TILE, ahead, hide, needs_mask, on_diagonal, score_tile, scratch_len};
use crate::args::{Call, Matrix};
use crate::math::exp;
use crate::tile::{Part, TileProduct};
use crate::vector::{sum, vectorized};

pub(crate) fn attention_grad(op: &AttentionGrad, call: &Call) -> Result<(), RuntimeError> {
    let (at, boundaries_at) = (op.out_at(), op.boundaries_at());
    let op = &op.0;
    let operands = Operands::new(op, |index| call.input(index))?;
    let gradients = Operands::new(op, |index| call.output(index))?;
    let (out, lse, d_out): (Matrix, Matrix, Matrix) = (call.input(at)?, call.input(at + 1)?, call.input(at + 2)?);
    let pairs = Pairs::new(op, call, boundaries_at, &operands)?;
    let shaping = Shaping::new(op, call, boundaries_at + op.boundaries())?;
    let scratch_len = scratch_len(op.heads.head_dim);
    let scratch: Matrix = call.workspace(call.workers.count(), scratch_len)?;
    let sums_cols = op.distance_sums(operands.q.matrix.rows, operands.k.matrix.rows, pairs.count(), false);
    let sums = match op.bias {
        true => Some(DistanceSums(call.workspace_behind(scratch, op.heads.query, sums_cols)?)),
        false => None,
    };
    let (heads, scale, mask) = (op.heads, op.scale, op.mask);
    let job = Gradient { heads, scale, mask, shaping, sums, operands, out, lse, d_out, gradients };
    call.workers.for_each(pairs.count() * heads.kv, |worker, task| {
        let pair = pairs.pair(task / heads.kv);
        // SAFETY: the scratch is the worker's alone; the heads' columns of these rows are the task's.
        unsafe { job.kv_head(&pair, task % heads.kv, scratch.row(worker)) };
    });
    for index in 0..op.operands() {
        let gradient: Matrix = call.output(index)?;
        let sequences = if index == 0 { pairs.queries } else { pairs.keys };
        for rows in sequences.outside(gradient.rows) {
            // SAFETY: rows that no task wrote.
            unsafe { gradient.row(rows.start).write_bytes(0, rows.len() * gradient.cols) };
        }
    }
    if let Some(sums) = sums {
        sums.add_up(op, pairs, call.workers, call.output(op.operands())?);
    }
    Ok(())
}

struct Gradient {
    heads: Heads,
    scale: f32,
    mask: Mask,
    shaping: Shaping,
    sums: Option<DistanceSums>,
    operands: Operands,
    out: Matrix,
    lse: Matrix,
    d_out: Matrix,
    gradients: Operands,
}

/// A tile of queries and a tile of keys.
#[derive(Clone, Copy)]
struct TilePair<'a> {
    pair: &'a Pair,
    tile: usize,
    key_tile: usize,
    head: usize,
    kv_head: usize,
    /// Queries in their tile.
    queries: usize,
    /// Nothing has been added to the gradient of these queries yet, nor to that of these keys.
    first_of_queries: bool,
    first_of_keys: bool,
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
    /// The bias, by distance.
    band: *mut f32,
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
            band: tile(6).wrapping_add(2 * TILE),
        }
    }
}

impl Gradient {
    /// All gradients of one key head and of the query heads that share it, in one sequence.
    ///
    /// # Safety
    /// `scratch` has `scratch_len` floats that nobody else touches, and the same holds for the results.
    unsafe fn kv_head(&self, pair: &Pair, kv_head: usize, scratch: *mut f32) {
        let group = self.heads.query / self.heads.kv;
        let scratch = GradScratch::new(scratch, self.heads.head_dim);
        // SAFETY: the caller's promises are passed on.
        unsafe { self.begin(pair, kv_head) };
        for tile in 0..pair.query_tiles() {
            for member in 0..group {
                let head = kv_head * group + member;
                let visible = pair.visible_tiles(tile, self.mask);
                // SAFETY: the caller's promises are passed on.
                unsafe {
                    if visible.is_empty() {
                        self.gradients.q.tile(head, &pair.queries, tile).clear();
                        continue;
                    }
                    let queries = self.load_queries(pair, tile, head, scratch);
                    for key_tile in visible.clone() {
                        let first_of_queries = key_tile == visible.start;
                        let first_of_keys = member == 0 && pair.first_seeing(key_tile, self.mask) == Some(tile);
                        let at =
                            TilePair { pair, tile, key_tile, head, kv_head, queries, first_of_queries, first_of_keys };
                        self.tile_pair(at, scratch);
                    }
                }
            }
        }
    }

    /// Zeros where nothing will be written before it is added to: keys that no query sees, sums over distances.
    ///
    /// # Safety
    /// As for [`Gradient::kv_head`].
    unsafe fn begin(&self, pair: &Pair, kv_head: usize) {
        let unseen = |&key_tile: &usize| pair.first_seeing(key_tile, self.mask).is_none();
        // SAFETY: the caller's promises are passed on.
        unsafe {
            for key_tile in (0..pair.key_tiles()).filter(unseen) {
                self.gradients.k.tile(kv_head, &pair.keys, key_tile).clear();
                self.gradients.v.tile(kv_head, &pair.keys, key_tile).clear();
            }
            if let Some(sums) = self.sums {
                let group = self.heads.query / self.heads.kv;
                (kv_head * group..(kv_head + 1) * group).for_each(|head| sums.clear(head, pair));
            }
        }
    }

    /// Brings a tile of queries and of `d_out` into the scratch, both ways round. Returns its rows.
    ///
    /// # Safety
    /// As for [`Gradient::kv_head`].
    unsafe fn load_queries(&self, pair: &Pair, tile: usize, head: usize, scratch: GradScratch) -> usize {
        let head_dim = self.heads.head_dim;
        let queries = self.operands.q.tile(head, &pair.queries, tile);
        let d_out = HeadRows::new(self.d_out, head * head_dim, &pair.queries, tile, head_dim);
        let first_row = pair.queries.start + tile * TILE;
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

    /// What one tile of queries and one of keys give each other.
    ///
    /// # Safety
    /// As for [`Gradient::kv_head`], with the tile of queries loaded.
    unsafe fn tile_pair(&self, at: TilePair, scratch: GradScratch) {
        let head_dim = self.heads.head_dim;
        let TilePair { pair, tile, key_tile, head, kv_head, queries, .. } = at;
        let keys = self.operands.k.tile(kv_head, &pair.keys, key_tile);
        let values = self.operands.v.tile(kv_head, &pair.keys, key_tile);
        let on_diagonal = on_diagonal(self.mask, tile, key_tile);
        let d_q = self.gradients.q.tile(head, &pair.queries, tile);
        let d_k = self.gradients.k.tile(kv_head, &pair.keys, key_tile);
        let d_v = self.gradients.v.tile(kv_head, &pair.keys, key_tile);
        // SAFETY: tiles of the scratch, and the rows of the results that belong to these tiles.
        unsafe {
            keys.copy_to(scratch.k);
            values.copy_to(scratch.v);
            score_tile(scratch.k, scratch.q_transposed, keys.rows, queries, head_dim, on_diagonal, scratch.p).run();
            score_tile(scratch.v, scratch.d_out_transposed, keys.rows, queries, head_dim, on_diagonal, scratch.ds)
                .run();
            self.score_tile_gradients(at, keys.rows, scratch);
            let onto_values = TileProduct {
                rows: keys.rows,
                cols: head_dim,
                depth: queries,
                a: scratch.p,
                a_row: TILE,
                a_col: 1,
                b: scratch.d_out,
                b_row: head_dim,
                c: d_v.start.cast_mut(),
                c_row: d_v.stride,
                add: !at.first_of_keys,
                part: if on_diagonal { Part::DepthFromRow } else { Part::All },
            };
            onto_values.run();
            TileProduct { a: scratch.ds, b: scratch.q, c: d_k.start.cast_mut(), c_row: d_k.stride, ..onto_values }
                .run();
            TileProduct {
                rows: queries,
                depth: keys.rows,
                a: scratch.ds,
                a_row: 1,
                a_col: TILE,
                b: scratch.k,
                c: d_q.start.cast_mut(),
                c_row: d_q.stride,
                add: !at.first_of_queries,
                part: if on_diagonal { Part::DepthToRow } else { Part::All },
                ..onto_values
            }
            .run();
        }
    }

    /// Makes probabilities and the gradient of the scores from the two products.
    ///
    /// # Safety
    /// As for [`Gradient::tile_pair`].
    unsafe fn score_tile_gradients(&self, at: TilePair, keys: usize, scratch: GradScratch) {
        let TilePair { pair, tile, key_tile, head, queries, .. } = at;
        let (mask, scale, ahead) = (self.mask, self.scale, ahead(tile, key_tile));
        let GradScratch { p, ds, lse, delta, band, .. } = scratch;
        // SAFETY: tiles and lines of the scratch; the sums are those of the caller's heads and sequence.
        unsafe {
            if self.shaping.is_plain() {
                if needs_mask(mask, tile, key_tile) {
                    hide(p, keys, ahead, mask);
                }
                score_gradients(keys, p, ds, lse.cast(), delta.cast(), scale);
                return;
            }
            self.shaping.load_band(head, tile, key_tile, band);
            let mut d_band = [0.0; 2 * TILE];
            let tile_of_scores = ScoreTile { keys, queries, p, ds, lse, delta, band, scale, mask, ahead };
            self.shaping.gradients(tile_of_scores, &mut d_band);
            if let Some(sums) = self.sums {
                sums.add(head, pair, (tile, key_tile), &d_band);
            }
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
