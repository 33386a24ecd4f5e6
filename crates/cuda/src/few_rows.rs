//! Products of few rows, as text is generated with, by a weight in few bits: its codes are read once and decoded where they
//! are multiplied, not to memory first.

use plimsoll_graph::DType;
use plimsoll_graph::ops::LinearKind;
use plimsoll_runtime::RuntimeError;

use crate::blas::Bias;
use crate::call::{Args, type_suffix};
use crate::stored::StoredProduct;

const MODULE: &str = "few_rows";
/// Rows from which on decoding to memory costs less than reading the rows again and again.
const ROWS_MAX: usize = 16;
/// As in `kernels/few_rows.cu`: rows of a block, columns of a block, and its threads.
const ROWS_AT_A_TIME: usize = 8;
const COLS: usize = 4;
const THREADS: u32 = 256;

/// Runs the product if it is one of these. Planned rows decide, so that whether all are in use does not show.
pub(crate) fn run(product: &StoredProduct) -> Option<Result<(), RuntimeError>> {
    let (left, result) = (&product.left, &product.result);
    let sixteen = matches!(left.dtype, DType::BF16 | DType::F16) && result.dtype == left.dtype;
    let few = product.op.kind == LinearKind::Forward && left.planned_rows <= ROWS_MAX;
    (few && sixteen && product.weight.rows_are_packs()).then(|| launch(product))
}

fn launch(product: &StoredProduct) -> Result<(), RuntimeError> {
    let (call, weight, left) = (product.call, &product.weight, &product.left);
    let (rows, all) = (0..left.rows, 0..product.across());
    let suffix = type_suffix(left.dtype).ok_or_else(|| call.unsupported(left.dtype))?;
    let at_a_time = if rows.len() == 1 { 1 } else { ROWS_AT_A_TIME };
    let args = weight
        .args(Args::new().ptr(left.at(0, product.left_first)))
        .ptr(product.result_at(0, &all))
        .ptr(product.bias_at(&all).unwrap_or(0))
        .u64(product.result.cols as u64)
        .u32(rows.len() as u32)
        .u32(all.len() as u32)
        .u32(product.depth as u32)
        .f32(product.op.alpha)
        .u32(u32::from(product.accumulates()));
    let grid = (all.len().div_ceil(COLS) as u32, rows.len().div_ceil(at_a_time) as u32, 1);
    let kernel = format!("few_rows_{at_a_time}_{}_{suffix}", weight.kernel_name(call)?);
    call.launch(MODULE, &kernel, grid, THREADS, 0, args)?;
    product.finish(&rows, &all, Bias::Done)
}
