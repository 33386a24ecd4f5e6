//! Rotary positions, half-split: pairs are (i, i + head_dim/2).

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Heads, Rope};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call};

const THREADS_MAX: usize = 512;
/// `ROPE_HEADS` in `kernels/rope.cu`: heads that a thread turns.
const HEADS: usize = 2;

/// The kernel for heads of so many features, its threads and its blocks for each row.
fn shape(heads: usize, head_dim: usize, dtype: DType) -> (&'static str, usize, usize) {
    // A thread keeps a run of pairs in some heads.
    let (half, pack) = (head_dim / 2, 16 / dtype.bytes());
    let runs = half / pack;
    if !half.is_multiple_of(pack) || runs == 0 || runs > THREADS_MAX {
        return ("rope_odd", (heads * half).clamp(1, THREADS_MAX), 1);
    }
    let side_by_side = heads.div_ceil(HEADS).clamp(1, THREADS_MAX / runs);
    ("rope", runs * side_by_side, heads.div_ceil(HEADS * side_by_side))
}

pub(crate) fn rope(op: &Rope, call: &Call) -> Result<(), RuntimeError> {
    let (qkv, table, positions, out) = (call.input(0), call.input(1), call.input(2), call.output(0));
    let suffix = call.suffix_of(&[qkv, out])?;
    if table.dtype != DType::F32 {
        return Err(call.unsupported(table.dtype));
    }
    let Heads { query, kv, head_dim } = op.heads;
    let heads = query + kv;
    let (kernel, threads, blocks) = shape(heads, head_dim, qkv.dtype);
    let values = if qkv.ptr == out.ptr { 0 } else { kv * head_dim };
    let args = Args::new()
        .ptr(qkv.ptr)
        .ptr(table.ptr)
        .ptr(positions.ptr)
        .ptr(out.ptr)
        .i32(heads as i32)
        .i32(head_dim as i32)
        .i32(qkv.cols as i32)
        .i32(values as i32)
        .i32(table.rows as i32)
        .f32(if op.inverse { -1.0 } else { 1.0 });
    call.launch("rope", &format!("{kernel}_{suffix}"), (qkv.rows as u32, blocks as u32, 1), threads as u32, 0, args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_is_turned() {
        assert_eq!(shape(40, 128, DType::BF16), ("rope", 160, 1));
        assert_eq!(shape(256, 128, DType::BF16), ("rope", 512, 2));
        assert_eq!(shape(3, 8, DType::F32), ("rope", 2, 1));
        assert_eq!(shape(3, 8, DType::BF16), ("rope_odd", 12, 1));
        assert_eq!(shape(40, 20, DType::F16), ("rope_odd", 400, 1));
    }
}
