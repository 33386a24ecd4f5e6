//! Layer norm of a token's features.

use plimsoll_graph::ops::{LayerNorm, LayerNormGrad};
use plimsoll_graph::{DType, GPU_PARTIAL_ROWS};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call};
use crate::norm::{add_partial_sums, address, partial_sums};

const MODULE: &str = "layer_norm";
const WARP: usize = 32;
const ROW_THREADS: usize = 512;

/// Threads for a row: one for each pack, in whole warps.
fn threads(cols: usize, dtype: DType) -> u32 {
    cols.div_ceil(16 / dtype.bytes()).next_multiple_of(WARP).min(ROW_THREADS) as u32
}

pub(crate) fn layer_norm(op: &LayerNorm, call: &Call) -> Result<(), RuntimeError> {
    let (x, normed, mean, rstd) = (call.input(0), call.output(0), call.output(1), call.output(2));
    let weight = op.weight.then(|| call.input(1));
    let bias = op.bias.then(|| call.input(1 + usize::from(op.weight)));
    let mut same = vec![x, normed];
    same.extend(weight.iter().chain(&bias));
    let suffix = call.suffix_of(&same)?;
    let args = Args::new()
        .ptr(x.ptr)
        .ptr(address(weight))
        .ptr(address(bias))
        .ptr(normed.ptr)
        .ptr(mean.ptr)
        .ptr(rstd.ptr)
        .i32(x.cols as i32)
        .f32(op.eps);
    let grid = (x.rows as u32, 1, 1);
    call.launch(MODULE, &format!("layer_norm_{suffix}"), grid, threads(x.cols, x.dtype), 0, args)
}

pub(crate) fn layer_norm_grad(op: &LayerNormGrad, call: &Call) -> Result<(), RuntimeError> {
    let (x, mean, rstd, d_normed, dx) = (call.input(0), call.input(1), call.input(2), call.input(3), call.output(0));
    let weight = op.weight.then(|| call.input(4));
    let so_far = op.accumulate.then(|| call.input(4 + usize::from(op.weight)));
    let mut same = vec![x, d_normed, dx];
    same.extend(weight.iter().chain(&so_far));
    let suffix = call.suffix_of(&same)?;
    let (cols, parameters) = (x.cols, op.parameters());
    let parts = if parameters > 0 { x.rows.min(GPU_PARTIAL_ROWS) } else { 0 };
    let partial = partial_sums(call, parts, parameters * cols)?;
    let blocks = if parameters > 0 { parts } else { x.rows };
    let args = Args::new()
        .ptr(x.ptr)
        .ptr(mean.ptr)
        .ptr(rstd.ptr)
        .ptr(d_normed.ptr)
        .ptr(address(weight))
        .ptr(address(so_far))
        .ptr(dx.ptr)
        .ptr(partial)
        .i32(x.rows as i32)
        .i32(cols as i32)
        .i32(i32::from(op.weight_grad))
        .i32(i32::from(op.bias_grad));
    let grid = (blocks as u32, 1, 1);
    call.launch(MODULE, &format!("layer_norm_grad_{suffix}"), grid, threads(cols, x.dtype), 0, args)?;
    for parameter in 0..parameters {
        let sums = partial + (4 * parameter * cols) as u64;
        add_partial_sums(call, &call.output(1 + parameter), sums, parts, parameters * cols)?;
    }
    Ok(())
}
