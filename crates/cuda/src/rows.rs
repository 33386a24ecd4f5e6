//! The rows of sequences' last tokens, and their gradient's way back among those of all tokens. Runs of rows.

use plimsoll_graph::DType;
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand};
use crate::elementwise::{THREADS, row_grid};

const MODULE: &str = "rows";

pub(crate) fn last_rows(call: &Call) -> Result<(), RuntimeError> {
    let (x, out) = (call.input(0), call.output(0));
    copy_rows(call, "last_rows", &x, &out, &out, x.rows)
}

pub(crate) fn last_rows_grad(call: &Call) -> Result<(), RuntimeError> {
    let (dy, dx) = (call.input(0), call.output(0));
    call.zero(dx.ptr, dx.bytes())?;
    copy_rows(call, "last_rows_grad", &dy, &dx, &dy, dx.rows)
}

/// The runs lie one behind another in what is divided; those without rows in use are empty.
pub(crate) fn split_rows(call: &Call) -> Result<(), RuntimeError> {
    let mut from = call.input(0).ptr;
    for index in 0..call.step.outputs.len() {
        let run = call.output(index);
        call.copy(run.ptr, from, run.bytes())?;
        from += run.bytes() as u64;
    }
    Ok(())
}

pub(crate) fn join_rows(call: &Call) -> Result<(), RuntimeError> {
    let mut to = call.output(0).ptr;
    for index in 0..call.step.inputs.len() {
        let run = call.input(index);
        call.copy(to, run.ptr, run.bytes())?;
        to += run.bytes() as u64;
    }
    Ok(())
}

/// A thread for each sixteen bytes of `sequences`, the one of both that has a row for each.
fn copy_rows(
    call: &Call,
    kernel: &str,
    from: &Operand,
    to: &Operand,
    sequences: &Operand,
    tokens: usize,
) -> Result<(), RuntimeError> {
    // Bits are copied, whatever they mean.
    let bits = match from.dtype {
        DType::F32 | DType::I32 | DType::U32 => 32,
        DType::BF16 | DType::F16 => 16,
        other => return Err(call.unsupported(other)),
    };
    let args = Args::new()
        .ptr(from.ptr)
        .ptr(call.input(1).ptr)
        .ptr(to.ptr)
        .u32(sequences.rows as u32)
        .u32(tokens as u32)
        .u32(sequences.cols as u32);
    call.launch(MODULE, &format!("{kernel}_{bits}"), row_grid(call, sequences)?, THREADS, 0, args)
}
