//! Products between tokens and weights, their gradients, and the bias's.
//!
//! Products with a small rank on one side are made by kernels of our own (`low_rank`), which mask while
//! they multiply. Dropout in any other product is made by masking runs of rows into the workspace.

use std::ops::Range;

use plimsoll_graph::DType;
use plimsoll_graph::ops::{BiasGrad, Cols, DROPOUT_ROWS, Dest, Linear, LinearKind};
use plimsoll_runtime::RuntimeError;

use crate::blas::{Bias, Factor, Onto, Product};
use crate::call::{Args, Call, Operand, two_types, type_suffix};
use crate::mask::Keep;
use crate::{few_rows, low_rank, stored};

const MODULE: &str = "linear";
const BLOCK: u32 = 256;
/// Shorter shares of the rows than this are not worth a block.
const BIAS_ROWS_MIN: usize = 64;
/// What the workspace is divided at.
const ALIGNMENT: usize = 256;

pub(crate) fn linear(op: &Linear, call: &Call) -> Result<(), RuntimeError> {
    if stored::is_stored(op, call) {
        return stored::linear(op, call);
    }
    if let Some(done) = low_rank::run(op, call).or_else(|| few_rows::run_whole(op, call)) {
        return done;
    }
    match op.kind {
        LinearKind::Forward => forward(op, call),
        LinearKind::InputGrad => input_grad(op, call),
        LinearKind::WeightGrad => weight_grad(op, call),
    }
}

/// Queues a product with all of the step's workspace, or a part of it.
pub(crate) fn multiply(call: &Call, product: &Product, workspace: (u64, usize)) -> Result<Bias, RuntimeError> {
    call.device.blas().run(call.device, product, workspace).map_err(|error| call.error(error))
}

/// The first of the columns an operator works on.
pub(crate) fn first_col(cols: Option<Cols>) -> usize {
    cols.map_or(0, |c| c.start)
}

fn same_type(call: &Call, a: &Operand, b: &Operand) -> Result<DType, RuntimeError> {
    if a.dtype != b.dtype || type_suffix(a.dtype).is_none() {
        return Err(call.error(format!("cannot multiply {} by {}", a.dtype.name(), b.dtype.name())));
    }
    Ok(a.dtype)
}

/// `y = onto + α·drop(x)·Wᵀ + b`.
fn forward(op: &Linear, call: &Call) -> Result<(), RuntimeError> {
    let (x, weight, y) = (call.input(0), call.input(1), call.output(0));
    let dtype = same_type(call, &x, &weight)?;
    let first = first_col(op.cols);
    let dest = op.dest_input().map(|at| call.input(at));
    // Sums are always made in place: the library may round otherwise where it reads the one matrix and writes another, and
    // where a plan puts them must not show in the bits.
    if let Some(dest) = dest {
        call.carry_over(&dest, &y)?;
    }
    let onto = (op.dest == Dest::Accumulate).then_some(y);
    let bias = op.bias.then(|| call.input(2));
    let product = |rows: Range<usize>, left: u64| Product {
        rows: rows.len(),
        cols: weight.rows,
        depth: weight.cols,
        alpha: op.alpha,
        left: Factor::new(left, x.cols),
        right: Factor::new(weight.ptr, weight.cols).transposed(),
        dtype,
        result: y.at(rows.start, first),
        result_stride: y.cols,
        result_dtype: y.dtype,
        onto: onto.map_or(Onto::Nothing, |onto| Onto::Matrix(onto.at(rows.start, first))),
        bias: bias.filter(|bias| bias.dtype == y.dtype).map(|bias| bias.ptr),
    };
    let mut biased = Bias::Done;
    match Masking::new(op, call, &x, dtype)? {
        None => biased = multiply(call, &product(0..x.rows, x.ptr), call.workspace())?,
        Some(masking) => {
            for rows in masking.runs(x.rows) {
                masking.mask(call, x.at(rows.start, 0), masking.scratch, rows.clone(), dtype)?;
                biased = multiply(call, &product(rows, masking.scratch), masking.rest)?;
            }
        }
    }
    match bias {
        Some(bias) if biased == Bias::Left || bias.dtype != y.dtype => add_bias(call, &y, first, &bias),
        _ => Ok(()),
    }
}

/// `dx = onto + drop(α·dy·W)`.
fn input_grad(op: &Linear, call: &Call) -> Result<(), RuntimeError> {
    let (dy, weight, dx) = (call.input(0), call.input(1), call.output(0));
    let dtype = same_type(call, &dy, &weight)?;
    let accumulates = op.dest_input().is_some();
    if let Some(at) = op.dest_input() {
        call.carry_over(&call.input(at), &dx)?;
    }
    let product = |rows: Range<usize>| Product {
        rows: rows.len(),
        cols: weight.cols,
        depth: weight.rows,
        alpha: op.alpha,
        left: Factor::new(dy.at(rows.start, first_col(op.cols)), dy.cols),
        right: Factor::new(weight.ptr, weight.cols),
        dtype,
        result: dx.at(rows.start, 0),
        result_stride: dx.cols,
        result_dtype: dx.dtype,
        onto: if accumulates { Onto::Matrix(dx.at(rows.start, 0)) } else { Onto::Nothing },
        bias: None,
    };
    // What is summed up before it is masked stays in float32.
    let Some(masking) = Masking::new(op, call, &dx, DType::F32)? else {
        multiply(call, &product(0..dx.rows), call.workspace())?;
        return Ok(());
    };
    if !accumulates {
        multiply(call, &product(0..dx.rows), masking.rest)?;
        return masking.mask(call, dx.ptr, dx.ptr, 0..dx.rows, dx.dtype);
    }
    for rows in masking.runs(dx.rows) {
        let whole = product(rows.clone());
        let into_scratch = Product { result: masking.scratch, result_dtype: DType::F32, onto: Onto::Nothing, ..whole };
        multiply(call, &into_scratch, masking.rest)?;
        masking.add(call, masking.scratch, &dx, rows)?;
    }
    Ok(())
}

/// `dW += α·dyᵀ·drop(x)`.
fn weight_grad(op: &Linear, call: &Call) -> Result<(), RuntimeError> {
    let (dy, x, dw) = (call.input(0), call.input(1), call.output(0));
    let dtype = same_type(call, &dy, &x)?;
    call.carry_over(&call.input(2), &dw)?;
    let product = |rows: Range<usize>, right: u64| Product {
        rows: dw.rows,
        cols: dw.cols,
        depth: rows.len(),
        alpha: op.alpha,
        left: Factor::new(dy.at(rows.start, first_col(op.cols)), dy.cols).transposed(),
        right: Factor::new(right, x.cols),
        dtype,
        result: dw.ptr,
        result_stride: dw.cols,
        result_dtype: dw.dtype,
        onto: Onto::Matrix(dw.ptr),
        bias: None,
    };
    let Some(masking) = Masking::new(op, call, &x, dtype)? else {
        multiply(call, &product(0..x.rows, x.ptr), call.workspace())?;
        return Ok(());
    };
    for rows in masking.runs(x.rows) {
        masking.mask(call, x.at(rows.start, 0), masking.scratch, rows.clone(), dtype)?;
        multiply(call, &product(rows, masking.scratch), masking.rest)?;
    }
    Ok(())
}

/// Dropout inside a product, and the scratch for runs of its rows.
struct Masking {
    row_ids: u64,
    key: u64,
    site: u32,
    keep: Keep,
    cols: usize,
    run_rows: usize,
    scratch: u64,
    /// What the product itself may use.
    rest: (u64, usize),
}

impl Masking {
    /// `None` without dropout. `scratch_dtype` is what rows are held in.
    fn new(op: &Linear, call: &Call, rows: &Operand, scratch_dtype: DType) -> Result<Option<Self>, RuntimeError> {
        let (Some(dropout), Some(at)) = (op.dropout, op.dropout_inputs()) else { return Ok(None) };
        let (start, bytes) = call.workspace();
        let row_bytes = rows.cols * scratch_dtype.bytes();
        // Longer runs mean fewer and fuller products; half of the scratch is left to those.
        let fit = bytes / 2 / row_bytes.max(1) / DROPOUT_ROWS * DROPOUT_ROWS;
        let run_rows = fit.max(DROPOUT_ROWS).min(rows.rows.max(1));
        let taken = (run_rows * row_bytes).next_multiple_of(ALIGNMENT);
        if run_rows * row_bytes > bytes {
            return Err(call.error(format!("needs {taken} bytes of workspace, {bytes} were planned")));
        }
        let rest = (start + taken as u64, bytes.saturating_sub(taken));
        Ok(Some(Self {
            row_ids: call.input(at).ptr,
            key: call.input(at + 1).ptr,
            site: dropout.site,
            keep: Keep::new(dropout.p),
            cols: rows.cols,
            run_rows,
            scratch: start,
            rest,
        }))
    }

    fn runs(&self, rows: usize) -> impl Iterator<Item = Range<usize>> {
        let run_rows = self.run_rows;
        (0..rows).step_by(run_rows).map(move |start| start..rows.min(start + run_rows))
    }

    /// `to = drop(from)`, where both begin with the first of `rows`.
    fn mask(&self, call: &Call, from: u64, to: u64, rows: Range<usize>, dtype: DType) -> Result<(), RuntimeError> {
        self.launch(call, "mask_rows", from, to, rows, dtype)
    }

    /// `to += drop(from)`, where `from` holds `rows` in float32.
    fn add(&self, call: &Call, from: u64, to: &Operand, rows: Range<usize>) -> Result<(), RuntimeError> {
        self.launch(call, "add_masked_rows", from, to.at(rows.start, 0), rows, to.dtype)
    }

    fn launch(
        &self,
        call: &Call,
        kernel: &str,
        from: u64,
        to: u64,
        rows: Range<usize>,
        dtype: DType,
    ) -> Result<(), RuntimeError> {
        let suffix = type_suffix(dtype).ok_or_else(|| call.unsupported(dtype))?;
        let args = Args::new()
            .ptr(from)
            .ptr(to)
            .ptr(self.row_ids + rows.start as u64 * 4)
            .ptr(self.key)
            .u32(self.cols as u32)
            .u32(self.site)
            .u32(self.keep.threshold)
            .f32(self.keep.scale);
        call.launch(MODULE, &format!("{kernel}_{suffix}"), (rows.len() as u32, 1, 1), BLOCK, 0, args)
    }
}

/// `y[:, first..] += bias`.
pub(crate) fn add_bias(call: &Call, y: &Operand, first: usize, bias: &Operand) -> Result<(), RuntimeError> {
    let kernel = format!("add_bias_{}", two_types(call, y.dtype, bias.dtype)?);
    let cols = bias.len();
    let args = Args::new().ptr(y.at(0, first)).ptr(bias.ptr).u32(y.cols as u32).u32(cols as u32);
    let grid = (y.rows as u32, cols.div_ceil(BLOCK as usize) as u32, 1);
    call.launch(MODULE, &kernel, grid, BLOCK, 0, args)
}

/// Shares of the rows are summed side by side, then the shares in their order.
pub(crate) fn bias_grad(op: &BiasGrad, call: &Call) -> Result<(), RuntimeError> {
    let (dy, old, db) = (call.input(0), call.input(1), call.output(0));
    call.carry_over(&old, &db)?;
    let cols = db.len();
    let (partials, bytes) = call.workspace();
    let parts = (bytes / (cols.max(1) * 4)).min(dy.rows.div_ceil(BIAS_ROWS_MIN));
    if parts == 0 {
        let short = dy.rows > 0 && cols > 0;
        return if short { Err(call.error(format!("{bytes} bytes of workspace hold no sum"))) } else { Ok(()) };
    }
    let args = Args::new()
        .ptr(dy.at(0, first_col(op.cols)))
        .ptr(partials)
        .u32(dy.rows as u32)
        .u32(dy.rows.div_ceil(parts) as u32)
        .u32(cols as u32)
        .u32(dy.cols as u32);
    let tokens = type_suffix(dy.dtype).ok_or_else(|| call.unsupported(dy.dtype))?;
    let grid = (cols.div_ceil(BLOCK as usize) as u32, parts as u32, 1);
    call.launch(MODULE, &format!("bias_grad_{tokens}"), grid, BLOCK, 0, args)?;
    let suffix = type_suffix(db.dtype).ok_or_else(|| call.unsupported(db.dtype))?;
    let args = Args::new().ptr(partials).ptr(db.ptr).u32(parts as u32).u32(cols as u32);
    call.launch(MODULE, &format!("add_parts_{suffix}"), (grid.0, 1, 1), BLOCK, 0, args)
}
