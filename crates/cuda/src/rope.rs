//! Rotary positions, half-split: pairs are (i, i + rotated/2).

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Heads, Rope};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call};

const THREADS_MAX: usize = 512;
/// `ROPE_HEADS` in `kernels/rope.cu`: heads that a thread turns.
const HEADS: usize = 2;

/// The kernel that turns these heads, its threads and its blocks for each row.
fn shape(op: &Rope, dtype: DType) -> (&'static str, usize, usize) {
    // A thread keeps a run of pairs in some heads.
    let (heads, half, pack) = (op.heads.query + op.heads.kv, op.rotated / 2, 16 / dtype.bytes());
    let runs = half / pack;
    let whole_packs = half.is_multiple_of(pack) && op.heads.head_dim.is_multiple_of(pack);
    if !whole_packs || runs == 0 || runs > THREADS_MAX {
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
    let (kernel, threads, blocks) = shape(op, qkv.dtype);
    let in_place = qkv.ptr == out.ptr;
    let [tails, values] = if in_place { [0, 0] } else { [heads * (head_dim - op.rotated), kv * head_dim] };
    let args = Args::new()
        .ptr(qkv.ptr)
        .ptr(table.ptr)
        .ptr(positions.ptr)
        .ptr(out.ptr)
        .i32(heads as i32)
        .i32(head_dim as i32)
        .i32(op.rotated as i32)
        .i32(qkv.cols as i32)
        .i32(tails as i32)
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
        let rope = |query, kv, head_dim| Rope::new(Heads { query, kv, head_dim });
        let part = |rotated, op| Rope { rotated, ..op };
        for (op, dtype, expected) in [
            (rope(32, 8, 128), DType::BF16, ("rope", 160, 1)),
            (rope(128, 128, 128), DType::BF16, ("rope", 512, 2)),
            (rope(2, 1, 8), DType::F32, ("rope", 2, 1)),
            (rope(2, 1, 8), DType::BF16, ("rope_odd", 12, 1)),
            (rope(32, 8, 20), DType::F16, ("rope_odd", 400, 1)),
            (part(32, rope(32, 8, 128)), DType::BF16, ("rope", 40, 1)),
            (part(16, rope(2, 1, 20)), DType::BF16, ("rope_odd", 24, 1)),
        ] {
            assert_eq!(shape(&op, dtype), expected, "{op:?} in {}", dtype.name());
        }
    }
}
