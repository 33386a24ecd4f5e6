//! Sums, multiples, dropout and zeros.

use plimsoll_graph::ops::{Dropout, Scale};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand};
use crate::mask::Keep;

const MODULE: &str = "elementwise";
pub(crate) const THREADS: u32 = 256;

/// A thread for each sixteen bytes of a buffer taken as one run.
pub(crate) fn flat_grid(buffer: &Operand) -> (u32, u32, u32) {
    (buffer.bytes().div_ceil(16).div_ceil(THREADS as usize) as u32, 1, 1)
}

/// A thread for each sixteen bytes of each row; the last ones of a row may be fewer.
pub(crate) fn row_grid(call: &Call, buffer: &Operand) -> Result<(u32, u32, u32), RuntimeError> {
    let threads = buffer.rows * (buffer.cols * buffer.dtype.bytes()).div_ceil(16);
    // Kernels count threads in 32 bits.
    if threads > (u32::MAX - THREADS) as usize {
        return Err(call.error(format!("{} rows of {} are too many for one launch", buffer.rows, buffer.cols)));
    }
    Ok((threads.div_ceil(THREADS as usize) as u32, 1, 1))
}

pub(crate) fn add(call: &Call) -> Result<(), RuntimeError> {
    let (a, b, out) = (call.input(0), call.input(1), call.output(0));
    let kernel = format!("add_{}", call.suffix_of(&[a, b, out])?);
    let args = Args::new().ptr(a.ptr).ptr(b.ptr).ptr(out.ptr).u64(out.len() as u64);
    call.launch(MODULE, &kernel, flat_grid(&out), THREADS, 0, args)
}

pub(crate) fn scale(op: &Scale, call: &Call) -> Result<(), RuntimeError> {
    let (x, out) = (call.input(0), call.output(0));
    let kernel = format!("scale_{}", call.suffix_of(&[x, out])?);
    let args = Args::new().ptr(x.ptr).ptr(out.ptr).u64(out.len() as u64).f32(op.factor);
    call.launch(MODULE, &kernel, flat_grid(&out), THREADS, 0, args)
}

pub(crate) fn dropout(op: &Dropout, call: &Call) -> Result<(), RuntimeError> {
    let (x, row_ids, key, out) = (call.input(0), call.input(1), call.input(2), call.output(0));
    let kernel = format!("dropout_{}", call.suffix_of(&[x, out])?);
    let keep = Keep::new(op.p);
    let args = Args::new()
        .ptr(x.ptr)
        .ptr(row_ids.ptr)
        .ptr(key.ptr)
        .ptr(out.ptr)
        .u32(out.rows as u32)
        .u32(out.cols as u32)
        .u32(op.site)
        .u32(keep.threshold)
        .f32(keep.scale);
    call.launch(MODULE, &kernel, row_grid(call, &out)?, THREADS, 0, args)
}

pub(crate) fn zeros(call: &Call) -> Result<(), RuntimeError> {
    let out = call.output(0);
    call.zero(out.ptr, out.bytes())
}
