//! Looking tokens up in a table, and summing gradients back into it.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Embed, EmbedGrad};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, type_suffix};
use crate::elementwise::{THREADS, row_grid};

const MODULE: &str = "embedding";
/// Tokens that one block finds the places of, and its threads.
const RANKED_PER_BLOCK: usize = 32;
const RANK_THREADS: u32 = 256;
const SUM_THREADS: usize = 128;

/// There are kernels between tokens of one type and a table of that or of float32.
fn check_types(call: &Call, tokens: DType, table: DType) -> Result<(), RuntimeError> {
    if type_suffix(tokens).is_none() || (table != tokens && table != DType::F32) {
        return Err(call.unsupported(table));
    }
    Ok(())
}

pub(crate) fn embed(op: &Embed, call: &Call) -> Result<(), RuntimeError> {
    let (table, tokens, out) = (call.input(0), call.input(1), call.output(0));
    check_types(call, out.dtype, table.dtype)?;
    let kernel = format!("embed_{}_{}", table.dtype.name(), out.dtype.name());
    let args = Args::new()
        .ptr(table.ptr)
        .ptr(tokens.ptr)
        .ptr(out.ptr)
        .u32(out.rows as u32)
        .u32(out.cols as u32)
        .i32(table.rows as i32)
        .f32(op.scale);
    call.launch(MODULE, &kernel, row_grid(call, &out)?, THREADS, 0, args)
}

/// Tokens are sorted by word first, so that each word's gradient has one block to add its rows up,
/// in their order.
pub(crate) fn embed_grad(op: &EmbedGrad, call: &Call) -> Result<(), RuntimeError> {
    let (dx, tokens, old, table) = (call.input(0), call.input(1), call.input(2), call.output(0));
    check_types(call, dx.dtype, table.dtype)?;
    call.carry_over(&old, &table)?;
    let rows = dx.rows;
    let ((sorted_tokens, planned), needed) = (call.workspace(), 2 * rows * size_of::<i32>());
    if needed > planned {
        return Err(call.error(format!("needs {needed} bytes of workspace, {planned} were planned")));
    }
    let sorted_rows = sorted_tokens + (rows * size_of::<i32>()) as u64;
    let args = Args::new().ptr(tokens.ptr).ptr(sorted_tokens).ptr(sorted_rows).i32(rows as i32);
    let blocks = rows.div_ceil(RANKED_PER_BLOCK) as u32;
    call.launch(MODULE, "embed_order", (blocks, 1, 1), RANK_THREADS, 0, args)?;
    let kernel = format!("embed_grad_{}_{}", dx.dtype.name(), table.dtype.name());
    let args = Args::new()
        .ptr(dx.ptr)
        .ptr(sorted_tokens)
        .ptr(sorted_rows)
        .ptr(table.ptr)
        .i32(rows as i32)
        .i32(dx.cols as i32)
        .i32(table.rows as i32)
        .i32(op.padding.map_or(-1, |token| token as i32))
        .f32(op.scale);
    let columns = dx.cols.div_ceil(SUM_THREADS * 16 / dx.dtype.bytes()) as u32;
    call.launch(MODULE, &kernel, (rows as u32, columns, 1), SUM_THREADS as u32, 0, args)
}
