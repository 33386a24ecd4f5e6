//! Rotary positions, half-split: pairs are (i, i + head_dim/2).

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Heads, Rope};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call};

const THREADS_MAX: usize = 256;

pub(crate) fn rope(op: &Rope, call: &Call) -> Result<(), RuntimeError> {
    let (qkv, table, positions, out) = (call.input(0), call.input(1), call.input(2), call.output(0));
    let suffix = call.suffix_of(&[qkv, out])?;
    if table.dtype != DType::F32 {
        return Err(call.unsupported(table.dtype));
    }
    let Heads { query, kv, head_dim } = op.heads;
    let heads = query + kv;
    // A thread keeps a run of pairs, and so its angles, for every head it turns.
    let runs = (head_dim / 2).div_ceil(16 / qkv.dtype.bytes());
    if runs == 0 || runs > THREADS_MAX {
        return Err(call.error(format!("cannot turn heads of {head_dim} features")));
    }
    let threads = runs * heads.min(THREADS_MAX / runs);
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
    call.launch("rope", &format!("rope_{suffix}"), (qkv.rows as u32, 1, 1), threads as u32, 0, args)
}
