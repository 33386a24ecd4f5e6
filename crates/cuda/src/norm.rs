//! RMS norms: of a token's features, alone or joined with the residual sum, and of each head.

use plimsoll_graph::DType;
use plimsoll_graph::GPU_PARTIAL_ROWS;
use plimsoll_graph::ops::{HeadNorm, HeadNormGrad, Heads, RmsNorm, RmsNormGrad, weight_addend};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand};

const MODULE: &str = "norm";
const WARP: usize = 32;
/// Threads at most for a row, and where the weight's gradient takes registers too.
const ROW_THREADS: usize = 512;
const SUMMED_ROW_THREADS: usize = 256;
const HEAD_THREADS: usize = 256;
/// Elements of a head that a lane holds.
const HEAD_ELEMENTS: usize = 8;
/// Columns and threads of a block that adds up partial sums.
const SUM_COLUMNS: usize = 32;
const SUM_THREADS: u32 = 256;

/// Which of a kernel's variants walks rows of this length, and with how many threads: those that hold a row in
/// registers want whole packs.
fn row_variant(cols: usize, dtype: DType, threads_max: usize) -> (&'static str, u32) {
    let pack = 16 / dtype.bytes();
    let packs = cols / pack;
    let holds = |count: usize| cols.is_multiple_of(pack) && packs <= count * threads_max;
    let held = [(1, "x1"), (2, "x2"), (4, "x4")].into_iter().find(|&(count, _)| holds(count));
    match held {
        Some((count, name)) => (name, packs.div_ceil(count).next_multiple_of(WARP) as u32),
        None => ("long", threads_max as u32),
    }
}

pub(crate) fn rms_norm(op: &RmsNorm, call: &Call) -> Result<(), RuntimeError> {
    let residual = usize::from(op.residual);
    let x = call.input(0);
    let other = op.residual.then(|| (call.input(1), call.output(0)));
    let weight = op.weight.then(|| call.input(1 + residual));
    let (normed, rstd) = (call.output(residual), call.output(residual + 1));
    let mut same = vec![x, normed];
    same.extend(other.iter().flat_map(|&(h, sum)| [h, sum]));
    same.extend(weight);
    let suffix = call.suffix_of(&same)?;
    let (variant, threads) = row_variant(x.cols, x.dtype, ROW_THREADS);
    let args = Args::new()
        .ptr(x.ptr)
        .ptr(other.map_or(0, |(h, _)| h.ptr))
        .ptr(address(weight))
        .ptr(other.map_or(0, |(_, sum)| sum.ptr))
        .ptr(normed.ptr)
        .ptr(rstd.ptr)
        .i32(x.cols as i32)
        .f32(op.eps)
        .f32(weight_addend(op.offset));
    call.launch(MODULE, &format!("rms_norm_{variant}_{suffix}"), (x.rows as u32, 1, 1), threads, 0, args)
}

pub(crate) fn rms_norm_grad(op: &RmsNormGrad, call: &Call) -> Result<(), RuntimeError> {
    let (x, rstd, d_normed, dx) = (call.input(0), call.input(1), call.input(2), call.output(0));
    let weight = op.weight.then(|| call.input(3));
    let so_far = op.accumulate.then(|| call.input(3 + usize::from(op.weight)));
    let mut same = vec![x, d_normed, dx];
    same.extend(weight.iter().chain(&so_far));
    let suffix = call.suffix_of(&same)?;
    let parts = if op.weight_grad { x.rows.min(GPU_PARTIAL_ROWS) } else { 0 };
    let partial = partial_sums(call, parts, x.cols)?;
    let (kernel, blocks, threads_max) = if op.weight_grad {
        ("rms_norm_summed_grad", parts, SUMMED_ROW_THREADS)
    } else {
        ("rms_norm_grad", x.rows, ROW_THREADS)
    };
    let (variant, threads) = row_variant(x.cols, x.dtype, threads_max);
    // Rows that are not held in registers keep no sums there.
    let kernel = if variant == "long" { "rms_norm_grad" } else { kernel };
    let args = Args::new()
        .ptr(x.ptr)
        .ptr(rstd.ptr)
        .ptr(d_normed.ptr)
        .ptr(address(weight))
        .ptr(address(so_far))
        .ptr(dx.ptr)
        .ptr(partial)
        .i32(x.rows as i32)
        .i32(x.cols as i32)
        .f32(weight_addend(op.offset));
    call.launch(MODULE, &format!("{kernel}_{variant}_{suffix}"), (blocks as u32, 1, 1), threads, 0, args)?;
    if op.weight_grad {
        add_partial_sums(call, &call.output(1), partial, parts, x.cols)?;
    }
    Ok(())
}

/// How lanes divide heads: groups of a power of two.
fn head_group(head_dim: usize, call: &Call) -> Result<usize, RuntimeError> {
    let group = head_dim.div_ceil(HEAD_ELEMENTS).next_power_of_two();
    if group > WARP {
        return Err(call.error(format!("heads of {head_dim} features are longer than {}", WARP * HEAD_ELEMENTS)));
    }
    Ok(group)
}

/// Heads of a fused row that are written: in place, values stay where they are.
fn touched(heads: Heads, from: &Operand, to: &Operand) -> usize {
    heads.query + if from.ptr == to.ptr { heads.kv } else { 2 * heads.kv }
}

pub(crate) fn head_norm(op: &HeadNorm, call: &Call) -> Result<(), RuntimeError> {
    let (qkv, out, rstd) = (call.input(0), call.output(0), call.output(1));
    let weights = op.weight.then(|| [call.input(1), call.input(2)]);
    let mut same = vec![qkv, out];
    same.extend(weights.iter().flatten());
    let suffix = call.suffix_of(&same)?;
    let Heads { query, kv, head_dim } = op.heads;
    let (group, touched) = (head_group(head_dim, call)?, touched(op.heads, &qkv, &out));
    let blocks = (qkv.rows * touched).div_ceil(HEAD_THREADS / group);
    let args = Args::new()
        .ptr(qkv.ptr)
        .ptr(address(weights.map(|[wq, _]| wq)))
        .ptr(address(weights.map(|[_, wk]| wk)))
        .ptr(out.ptr)
        .ptr(rstd.ptr)
        .i32(qkv.rows as i32)
        .i32(query as i32)
        .i32(kv as i32)
        .i32(head_dim as i32)
        .i32(touched as i32)
        .i32(group as i32)
        .f32(op.eps)
        .f32(weight_addend(op.offset));
    call.launch(MODULE, &format!("head_norm_{suffix}"), (blocks as u32, 1, 1), HEAD_THREADS as u32, 0, args)
}

pub(crate) fn head_norm_grad(op: &HeadNormGrad, call: &Call) -> Result<(), RuntimeError> {
    let (qkv, rstd, dy, dx) = (call.input(0), call.input(1), call.input(2), call.output(0));
    let weights = op.weight.then(|| [call.input(3), call.input(4)]);
    let mut same = vec![qkv, dy, dx];
    same.extend(weights.iter().flatten());
    let suffix = call.suffix_of(&same)?;
    let Heads { query, kv, head_dim } = op.heads;
    let group = head_group(head_dim, call)?;
    let parts = if op.weight_grad { qkv.rows.min(GPU_PARTIAL_ROWS) } else { 0 };
    let partial = partial_sums(call, parts, 2 * head_dim)?;
    let blocks = if op.weight_grad { parts } else { qkv.rows };
    let args = Args::new()
        .ptr(qkv.ptr)
        .ptr(rstd.ptr)
        .ptr(dy.ptr)
        .ptr(address(weights.map(|[wq, _]| wq)))
        .ptr(address(weights.map(|[_, wk]| wk)))
        .ptr(dx.ptr)
        .ptr(partial)
        .i32(qkv.rows as i32)
        .i32(query as i32)
        .i32(kv as i32)
        .i32(head_dim as i32)
        .i32(touched(op.heads, &dy, &dx) as i32)
        .i32(group as i32)
        .f32(weight_addend(op.offset));
    call.launch(MODULE, &format!("head_norm_grad_{suffix}"), (blocks as u32, 1, 1), HEAD_THREADS as u32, 0, args)?;
    if op.weight_grad {
        add_partial_sums(call, &call.output(1), partial, parts, 2 * head_dim)?;
        add_partial_sums(call, &call.output(2), partial + 4 * head_dim as u64, parts, 2 * head_dim)?;
    }
    Ok(())
}

/// The address of an optional operand; null if there is none.
pub(crate) fn address(operand: Option<Operand>) -> u64 {
    operand.map_or(0, |operand| operand.ptr)
}

/// Scratch for `parts` rows of sums; null where none are kept.
pub(crate) fn partial_sums(call: &Call, parts: usize, cols: usize) -> Result<u64, RuntimeError> {
    let ((at, planned), needed) = (call.workspace(), parts * cols * size_of::<f32>());
    if needed > planned {
        return Err(call.error(format!("needs {needed} bytes of workspace, {planned} were planned")));
    }
    Ok(if parts > 0 { at } else { 0 })
}

/// `total += Σ partial`, whose rows lie `stride` apart.
pub(crate) fn add_partial_sums(
    call: &Call,
    total: &Operand,
    partial: u64,
    parts: usize,
    stride: usize,
) -> Result<(), RuntimeError> {
    if parts == 0 {
        return Ok(());
    }
    let suffix = call.suffix_of(&[*total])?;
    let args = Args::new().ptr(total.ptr).ptr(partial).i32(parts as i32).i32(total.len() as i32).i32(stride as i32);
    let blocks = total.len().div_ceil(SUM_COLUMNS) as u32;
    call.launch(MODULE, &format!("add_partial_sums_{suffix}"), (blocks, 1, 1), SUM_THREADS, 0, args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_held_in_as_few_packs_as_the_threads_allow() {
        for (cols, dtype, expected) in [
            (4, DType::F32, ("x1", 32)),
            (6, DType::F32, ("long", 512)),
            (700, DType::BF16, ("long", 512)),
            (700, DType::F32, ("x1", 192)),
            (4096, DType::BF16, ("x1", 512)),
            (5120, DType::BF16, ("x2", 320)),
            (8192, DType::F32, ("x4", 512)),
            (8196, DType::F32, ("long", 512)),
        ] {
            assert_eq!(row_variant(cols, dtype, ROW_THREADS), expected, "{cols} of {}", dtype.name());
        }
        assert_eq!(row_variant(4096, DType::BF16, SUMMED_ROW_THREADS), ("x2", 256));
    }
}
