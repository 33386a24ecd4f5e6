//! Keys and values kept for sequences that grow, and attention over them: a task is one row and the query heads that share
//! a key head. The keys it sees are walked once, from the oldest, a tile at a time.

use plimsoll_graph::ops::{CacheWrite, CachedAttention, Heads};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};
use crate::math::{exp, tanh};
use crate::vector::{fill, maximum, sum, vectorized};

/// Keys whose scores are there at one time.
const TILE: usize = 64;
/// Query heads that walk over their keys together.
const HEADS_AT_ONCE: usize = 8;

/// Where the rows of a micro-batch stand in their sequences.
struct Places<'a> {
    places: &'a [i32],
    positions: &'a [i32],
}

impl<'a> Places<'a> {
    fn new(call: &Call<'a>, cache: Matrix, capacity: usize) -> Result<Self, RuntimeError> {
        // SAFETY: nobody writes to places and positions while a step runs.
        let (places, positions) = unsafe { (call.input::<i32>(2)?.slice(), call.input::<i32>(3)?.slice()) };
        let count = cache.rows / capacity;
        for (row, (&place, &position)) in places.iter().zip(positions).enumerate() {
            if place >= 0 && (place as usize >= count || position < 0) {
                return Err(call.error(format!("row {row} has place {place} of {count} and position {position}")));
            }
        }
        Ok(Self { places, positions })
    }

    /// Place and position of a row; `None` if it belongs to no sequence.
    fn of(&self, row: usize) -> Option<(usize, usize)> {
        let place = usize::try_from(self.places[row]).ok()?;
        Some((place, self.positions[row] as usize))
    }
}

pub(crate) fn cache_write(op: &CacheWrite, call: &Call) -> Result<(), RuntimeError> {
    let (from, cache): (Matrix, Matrix) = (call.input(0)?, call.output(0)?);
    let places = Places::new(call, cache, op.capacity)?;
    call.workers.rows(from.rows, cache.cols, |rows| {
        for row in rows {
            let Some((place, position)) = places.of(row) else { continue };
            let to = place * op.capacity + position % op.capacity;
            // SAFETY: the place was checked; no other row has it.
            unsafe {
                let from = from.row(row).add(from.cols - cache.cols);
                std::ptr::copy_nonoverlapping(from, cache.row(to), cache.cols);
            }
        }
    });
    Ok(())
}

pub(crate) fn cached_attention(op: &CachedAttention, call: &Call) -> Result<(), RuntimeError> {
    let (queries, cache, out): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.output(0)?);
    let bias: Option<(Matrix, usize)> = match op.bias {
        Some(zero) => Some((call.input(4)?, zero)),
        None => None,
    };
    let places = Places::new(call, cache, op.capacity)?;
    let Heads { query, kv, head_dim } = op.heads;
    let beyond = |row: usize| places.of(row).is_some_and(|(_, at)| at + 1 - op.first_seen(at) > op.capacity);
    if let Some(row) = (0..out.rows).find(|&row| beyond(row)) {
        let position = places.positions[row];
        return Err(call.error(format!("row {row} at position {position} sees more than {} rows", op.capacity)));
    }
    let group = query / kv;
    call.workers.for_each(out.rows * kv, |_, task| {
        let (row, kv_head) = (task / kv, task % kv);
        let first_head = kv_head * group;
        let to = out.row(row).wrapping_add(first_head * head_dim);
        // SAFETY: these columns of the row are the task's alone.
        unsafe { to.write_bytes(0, group * head_dim) };
        let Some((place, position)) = places.of(row) else { return };
        let first = op.first_seen(position);
        let keys = Keys {
            start: cache.row(place * op.capacity).wrapping_add(kv_head * head_dim),
            stride: cache.cols,
            to_values: op.heads.kv_cols(),
            capacity: op.capacity,
            first: first % op.capacity,
            count: position + 1 - first,
        };
        for head in (0..group).step_by(HEADS_AT_ONCE) {
            let heads = HEADS_AT_ONCE.min(group - head);
            let q = queries.row(row).wrapping_add((first_head + head) * head_dim);
            let bias = bias.map(|(table, zero)| Bias {
                first: table.row(first_head + head).wrapping_add(zero + first - position).cast_const(),
                stride: table.cols,
            });
            // SAFETY: the cache has these rows, the row its heads, the bias the distances of these keys, and the results
            // are zeroed and the task's.
            unsafe { attend(op, heads, q, keys, bias, to.wrapping_add(head * head_dim)) };
        }
    });
    Ok(())
}

/// The keys that one row sees, of one head.
#[derive(Clone, Copy)]
struct Keys {
    /// Of the place.
    start: *const f32,
    stride: usize,
    /// From a key to its value.
    to_values: usize,
    capacity: usize,
    /// The row of the oldest.
    first: usize,
    count: usize,
}

impl Keys {
    #[inline(always)]
    fn key(&self, index: usize) -> *const f32 {
        let row = self.first + index;
        let row = if row < self.capacity { row } else { row - self.capacity };
        self.start.wrapping_add(row * self.stride)
    }
}

/// What is added to the scores of one row.
#[derive(Clone, Copy)]
struct Bias {
    /// Of the first head and the oldest key; those of the next keys lie behind it.
    first: *const f32,
    /// From a head to the next.
    stride: usize,
}

vectorized! {
    /// Adds up what some heads of a row take from the keys they see. `out` holds zeros.
    unsafe fn attend(op: &CachedAttention, heads: usize, q: *const f32, keys: Keys, bias: Option<Bias>, out: *mut f32) {
        let head_dim = op.heads.head_dim;
        let (mut peaks, mut totals) = ([f32::NEG_INFINITY; HEADS_AT_ONCE], [0.0f32; HEADS_AT_ONCE]);
        let mut scores = [0.0f32; TILE];
        for start in (0..keys.count).step_by(TILE) {
            let len = TILE.min(keys.count - start);
            for head in 0..heads {
                let (q, out) = (q.wrapping_add(head * head_dim), out.wrapping_add(head * head_dim));
                for (index, score) in scores[..len].iter_mut().enumerate() {
                    let key = keys.key(start + index);
                    // SAFETY: the caller vouches for the keys and the heads.
                    *score = op.scale * sum(head_dim, |i, partial| unsafe { (*q.add(i)).mul_add(*key.add(i), partial) });
                }
                if let Some(cap) = op.softcap {
                    scores[..len].iter_mut().for_each(|score| *score = cap * tanh(*score / cap));
                }
                if let Some(bias) = bias {
                    let bias = bias.first.wrapping_add(head * bias.stride + start);
                    // SAFETY: the caller vouches for the bias of these keys.
                    let bias = unsafe { std::slice::from_raw_parts(bias, len) };
                    scores[..len].iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
                }
                let tile_peak = maximum(len, |i| scores[i]);
                let peak = if tile_peak > peaks[head] { tile_peak } else { peaks[head] };
                let shrink = exp(peaks[head] - peak);
                scores[..len].iter_mut().for_each(|score| *score = exp(*score - peak));
                totals[head] = totals[head].mul_add(shrink, sum(len, |i, partial| partial + scores[i]));
                peaks[head] = peak;
                // SAFETY: as above, and for the results.
                unsafe {
                    fill(head_dim, out, |c| *out.add(c) * shrink);
                    for (index, &weight) in scores[..len].iter().enumerate() {
                        let value = keys.key(start + index).add(keys.to_values);
                        fill(head_dim, out, |c| weight.mul_add(*value.add(c), *out.add(c)));
                    }
                }
            }
        }
        for (head, total) in totals[..heads].iter().enumerate() {
            let (out, factor) = (out.wrapping_add(head * head_dim), 1.0 / total);
            // SAFETY: as above.
            unsafe { fill(head_dim, out, |c| *out.add(c) * factor) };
        }
    }
}
