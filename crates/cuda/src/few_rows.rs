//! Products of few rows, as text is generated with: the weight is read once, at the memory's speed. Codes of few bits are
//! decoded where they are multiplied, not to memory first.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Dest, Linear, LinearKind};
use plimsoll_runtime::RuntimeError;

use crate::blas::Bias;
use crate::call::{Args, Call, Operand, type_suffix};
use crate::decode::StoredWeight;
use crate::linear::{add_bias, first_col};
use crate::stored::StoredProduct;

const MODULE: &str = "few_rows";
const CODED_MODULE: &str = "few_rows_coded";
/// Rows from which on decoding to memory costs less than reading the rows again and again.
const CODED_ROWS_MAX: usize = 16;
/// Rows up to which a weight in sixteen bits is read once.
const WHOLE_ROWS_MAX: usize = ROWS_AT_A_TIME;
/// As in `kernels/few_rows_coded.cu`: columns and threads of a block, and elements of which there are whole runs in a row.
const CODED_COLS: usize = 16;
const CODED_THREADS: u32 = 256;
const CODED_RUN: usize = 32;
/// As in `kernels/few_rows.cu`: rows of a warp and columns beside them, unless there is one row; warps of a block; elements
/// that a lane reads at a time.
const ROWS_AT_A_TIME: usize = 8;
const COLS_AT_A_TIME: usize = 2;
const WARPS: usize = 4;
const THREADS: u32 = 32 * WARPS as u32;
const PACK: usize = 8;

/// Of a weight in few bits: runs the product if it is one of these. Planned rows decide, so that whether all are in use does
/// not show.
pub(crate) fn run_coded(product: &StoredProduct) -> Option<Result<(), RuntimeError>> {
    let (left, result) = (&product.left, &product.result);
    let few = product.op.kind == LinearKind::Forward && left.planned_rows <= CODED_ROWS_MAX;
    (few && sixteen(left, result) && product.weight.rows_are_packs()).then(|| launch_coded(product))
}

fn sixteen(left: &Operand, result: &Operand) -> bool {
    matches!(left.dtype, DType::BF16 | DType::F16) && result.dtype == left.dtype
}

/// Whether tensor cores multiply: what a lane reads at a time has one scale. The weight decides, not the number of rows.
fn in_runs(weight: &StoredWeight) -> bool {
    weight.cols().is_multiple_of(CODED_RUN)
}

fn launch_coded(product: &StoredProduct) -> Result<(), RuntimeError> {
    let (weight, all) = (&product.weight, 0..product.across());
    let few = FewRows {
        format: weight.kernel_name(product.call)?,
        result: product.result_at(0, &all),
        result_stride: product.result.cols,
        bias: product.bias_at(&all).unwrap_or(0),
        cols: all.len(),
        alpha: product.op.alpha,
        accumulates: product.accumulates(),
    };
    if in_runs(weight) {
        few.launch_runs(product.call, &product.left, weight)?;
    } else {
        few.launch(product.call, &product.left, |args| weight.args(args))?;
    }
    product.finish(&(0..product.left.rows), &all, Bias::Done)
}

/// Of a weight in sixteen bits: runs `y = onto + α·x·Wᵀ + b` if it is one of these. The sum is made in place.
pub(crate) fn run_whole(op: &Linear, call: &Call) -> Option<Result<(), RuntimeError>> {
    let (x, weight, y) = (call.input(0), call.input(1), call.output(0));
    let few = op.kind == LinearKind::Forward && op.dropout.is_none() && x.planned_rows <= WHOLE_ROWS_MAX;
    let packed = weight.dtype == x.dtype && weight.cols.is_multiple_of(PACK);
    (few && sixteen(&x, &y) && packed).then(|| launch_whole(op, call, [x, weight, y]))
}

fn launch_whole(op: &Linear, call: &Call, [x, weight, y]: [Operand; 3]) -> Result<(), RuntimeError> {
    if let Some(at) = op.dest_input() {
        call.carry_over(&call.input(at), &y)?;
    }
    if x.rows == 0 {
        return Ok(());
    }
    let (first, bias) = (first_col(op.cols), op.bias.then(|| call.input(2)));
    let few = FewRows {
        format: "whole",
        result: y.at(0, first),
        result_stride: y.cols,
        bias: bias.filter(|bias| bias.dtype == y.dtype).map_or(0, |bias| bias.ptr),
        cols: weight.rows,
        alpha: op.alpha,
        accumulates: op.dest == Dest::Accumulate,
    };
    few.launch(call, &x, |args| args.ptr(weight.ptr).ptr(0).ptr(0))?;
    match bias {
        Some(bias) if bias.dtype != y.dtype => add_bias(call, &y, first, &bias),
        _ => Ok(()),
    }
}

/// What one kernel does, but for its factors.
struct FewRows {
    /// What kernels are called after.
    format: &'static str,
    result: u64,
    result_stride: usize,
    /// Null if there is none.
    bias: u64,
    cols: usize,
    alpha: f32,
    accumulates: bool,
}

impl FewRows {
    fn launch(&self, call: &Call, left: &Operand, weight: impl Fn(Args) -> Args) -> Result<(), RuntimeError> {
        let (rows, cols) = if left.rows == 1 { (1, 1) } else { (ROWS_AT_A_TIME, COLS_AT_A_TIME) };
        let args = self.args(left, weight(Args::new().ptr(left.ptr)));
        let grid = (self.cols.div_ceil(WARPS * cols) as u32, left.rows.div_ceil(rows) as u32, 1);
        call.launch(MODULE, &self.kernel(call, left, rows)?, grid, THREADS, 0, args)
    }

    /// Of a weight in few bits, on tensor cores.
    fn launch_runs(&self, call: &Call, left: &Operand, weight: &StoredWeight) -> Result<(), RuntimeError> {
        let rows = if left.rows <= ROWS_AT_A_TIME { ROWS_AT_A_TIME } else { CODED_ROWS_MAX };
        let args = self.args(left, weight.args(Args::new().ptr(left.ptr)));
        let grid = (self.cols.div_ceil(CODED_COLS) as u32, 1, 1);
        call.launch(CODED_MODULE, &self.kernel(call, left, rows)?, grid, CODED_THREADS, 0, args)
    }

    fn kernel(&self, call: &Call, left: &Operand, rows: usize) -> Result<String, RuntimeError> {
        let suffix = type_suffix(left.dtype).ok_or_else(|| call.unsupported(left.dtype))?;
        Ok(format!("few_rows_{rows}_{}_{suffix}", self.format))
    }

    /// What follows the factors.
    fn args(&self, left: &Operand, factors: Args) -> Args {
        factors
            .ptr(self.result)
            .ptr(self.bias)
            .u64(self.result_stride as u64)
            .u32(left.rows as u32)
            .u32(self.cols as u32)
            .u32(left.cols as u32)
            .f32(self.alpha)
            .u32(u32::from(self.accumulates))
    }
}
