//! Keys and values kept for sequences that grow, and attention over them.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{CacheWrite, CachedAttention};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call};
use crate::elementwise::{THREADS, row_grid};

const MODULE: &str = "cached";
/// Warps of a block divide the keys; each holds a head in eight registers of a lane, or each of some groups of its lanes
/// does.
const WARPS: u32 = 16;
/// Numbers of sixteen bits that a lane reads at a time, and lanes of the smallest group.
const PACK: usize = 8;
const LANES_MIN: usize = 4;
const HEAD_DIM_MAX: usize = 256;

pub(crate) fn cache_write(op: &CacheWrite, call: &Call) -> Result<(), RuntimeError> {
    let (from, cache, places, positions) = (call.input(0), call.output(0), call.input(2), call.input(3));
    // Bits are copied, whatever they mean.
    let bits = match (from.dtype, cache.dtype) {
        (DType::F32, DType::F32) => 32,
        (DType::BF16, DType::BF16) | (DType::F16, DType::F16) => 16,
        (other, _) => return Err(call.unsupported(other)),
    };
    let args = Args::new()
        .ptr(from.ptr)
        .ptr(cache.ptr)
        .ptr(places.ptr)
        .ptr(positions.ptr)
        .u32(from.rows as u32)
        .u32((op.row_cols() - cache.cols) as u32)
        .u32(cache.cols as u32)
        .u32(op.capacity as u32)
        .u32((cache.rows / op.capacity) as u32);
    let rows = crate::call::Operand { rows: from.rows, ..cache };
    call.launch(MODULE, &format!("cache_write_{bits}"), row_grid(call, &rows)?, THREADS, 0, args)
}

pub(crate) fn cached_attention(op: &CachedAttention, call: &Call) -> Result<(), RuntimeError> {
    let (queries, cache, places, positions) = (call.input(0), call.input(1), call.input(2), call.input(3));
    let out = call.output(0);
    let suffix = call.suffix_of(&[queries, cache, out])?;
    // Where the entries of distance zero begin, and how far those of one head are from the next's.
    let (bias, distances) = op.bias.map_or((0, 0), |zero| {
        let table = call.input(4);
        (table.at(0, zero), table.cols)
    });
    let heads = op.heads;
    if heads.kv == 0 || !heads.query.is_multiple_of(heads.kv) || heads.head_dim > HEAD_DIM_MAX {
        let reason =
            format!("{} query heads on {} key heads of {} have no kernel", heads.query, heads.kv, heads.head_dim);
        return Err(call.error(format!("{reason}; head dims may be up to {HEAD_DIM_MAX}")));
    }
    let window = op.window.map_or(i32::MAX, |w| i32::try_from(w).unwrap_or(i32::MAX));
    let args = Args::new()
        .ptr(queries.ptr)
        .ptr(cache.ptr)
        .ptr(places.ptr)
        .ptr(positions.ptr)
        .ptr(bias)
        .ptr(out.ptr)
        .i32(op.row_cols() as i32)
        .i32(distances as i32)
        .i32(heads.query as i32)
        .i32(heads.kv as i32)
        .i32(heads.head_dim as i32)
        .i32(op.capacity as i32)
        .i32((cache.rows / op.capacity) as i32)
        .i32(window)
        .f32(op.scale)
        .f32(op.softcap.unwrap_or(0.0));
    let grid = (heads.query as u32, out.rows as u32, 1);
    let kernel = match packed_lanes(heads.head_dim, out.dtype) {
        Some(lanes) => format!("cached_attention_{lanes}_{suffix}"),
        None => format!("cached_attention_{suffix}"),
    };
    call.launch(MODULE, &kernel, grid, WARPS * 32, 0, args)
}

/// Lanes that have a key of such a head, a pack each; `None` where heads are not whole packs of sixteen-bit numbers. Rows of
/// queries and of the cache are whole heads.
fn packed_lanes(head_dim: usize, dtype: DType) -> Option<usize> {
    let packed = matches!(dtype, DType::BF16 | DType::F16) && head_dim.is_multiple_of(PACK);
    packed.then(|| (head_dim / PACK).next_power_of_two().max(LANES_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_whole_packs_have_lanes() {
        for (head_dim, lanes) in [(8, 4), (32, 4), (40, 8), (64, 8), (96, 16), (128, 16), (136, 32), (256, 32)] {
            assert_eq!(packed_lanes(head_dim, DType::BF16), Some(lanes), "{head_dim}");
        }
        assert_eq!((packed_lanes(100, DType::BF16), packed_lanes(128, DType::F32)), (None, None));
    }
}
