//! Products between tokens and weights, their gradients, and the bias's.

use plimsoll_graph::ops::{BiasGrad, Cols, DROPOUT_ROWS, Dest, Linear, LinearKind};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};
use crate::coded;
use crate::elementwise::{DropoutSite, add_dropped_row, drop_row};
use crate::product::{Factor, Onto, Product};
use crate::vector::{fill, vectorized};

pub(crate) fn linear(op: &Linear, call: &Call) -> Result<(), RuntimeError> {
    let out: Matrix = call.output(0)?;
    if let Some(at) = op.dest_input() {
        call.carry_over(call.input(at)?, out);
    }
    if op.kind != LinearKind::WeightGrad && call.step.inputs[1].storage.blocks.is_some() {
        return coded::coded_product(op, call, out);
    }
    let dropout = match (op.dropout, op.dropout_inputs()) {
        (Some(inner), Some(at)) => Some(DropoutSite::new(call, inner.p, inner.site, at)?),
        _ => None,
    };
    match op.kind {
        LinearKind::Forward => forward(op, call, out, dropout),
        LinearKind::InputGrad => input_grad(op, call, out, dropout),
        LinearKind::WeightGrad => weight_grad(op, call, out, dropout),
    }
}

/// The first of the columns an operator works on.
pub(crate) fn first_col(cols: Option<Cols>) -> usize {
    cols.map_or(0, |c| c.start)
}

/// Runs of at most `DROPOUT_ROWS` rows.
fn row_runs(rows: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..rows).step_by(DROPOUT_ROWS).map(move |start| start..rows.min(start + DROPOUT_ROWS))
}

/// Room for one run of masked rows.
fn masked_rows(call: &Call, rows: usize, cols: usize) -> Result<Matrix, RuntimeError> {
    call.workspace_behind_packing(rows.min(DROPOUT_ROWS), cols)
}

/// `y = onto + α·drop(x)·Wᵀ`.
fn forward(op: &Linear, call: &Call, y: Matrix, dropout: Option<DropoutSite>) -> Result<(), RuntimeError> {
    let (x, weight): (Matrix, Matrix) = (call.input(0)?, call.input(1)?);
    let packing = call.packing()?;
    let bias: Option<Matrix> = if op.bias { Some(call.input(2)?) } else { None };
    let product = Product {
        rows: x.rows,
        cols: weight.rows,
        depth: weight.cols,
        alpha: op.alpha,
        left: Factor::new(x.ptr(), x.cols),
        right: Factor::new(weight.ptr(), weight.cols).transposed(),
        result: y.ptr().wrapping_add(first_col(op.cols)),
        result_stride: y.cols,
        onto: match (op.dest, bias) {
            (Dest::Accumulate, Some(bias)) => Onto::PresentAndBias(bias.ptr()),
            (Dest::Accumulate, None) => Onto::Present,
            (_, Some(bias)) => Onto::Bias(bias.ptr()),
            (_, None) => Onto::Nothing,
        },
    };
    let Some(site) = dropout else {
        // SAFETY: the shapes were checked when the graph was built, the rows by `args`; `y` lies apart from both.
        unsafe { product.run(call.workers, packing) };
        return Ok(());
    };
    let masked = masked_rows(call, x.rows, x.cols)?;
    for run in row_runs(x.rows) {
        mask_rows(call, x, run.clone(), site, masked);
        let result = product.result.wrapping_add(run.start * y.cols);
        // SAFETY: as above, for these rows.
        unsafe {
            Product { rows: run.len(), left: Factor::new(masked.ptr(), x.cols), result, ..product }
                .run(call.workers, packing)
        };
    }
    Ok(())
}

/// Fills the workspace with a run of masked rows.
fn mask_rows(call: &Call, x: Matrix, run: std::ops::Range<usize>, site: DropoutSite, masked: Matrix) {
    call.workers.rows(run.len(), x.cols, |rows| {
        for row in rows {
            let from = run.start + row;
            // SAFETY: the workspace has room for the run and lies apart from `x`.
            unsafe { drop_row(x.cols, x.row(from), masked.row(row), site.row(from)) };
        }
    });
}

/// `dx = onto + drop(α·dy·W)`.
fn input_grad(op: &Linear, call: &Call, dx: Matrix, dropout: Option<DropoutSite>) -> Result<(), RuntimeError> {
    let (dy, weight): (Matrix, Matrix) = (call.input(0)?, call.input(1)?);
    let packing = call.packing()?;
    let accumulate = op.dest == Dest::Accumulate;
    let product = Product {
        rows: dy.rows,
        cols: weight.cols,
        depth: weight.rows,
        alpha: op.alpha,
        left: Factor::new(dy.ptr().wrapping_add(first_col(op.cols)), dy.cols),
        right: Factor::new(weight.ptr(), weight.cols),
        result: dx.ptr(),
        result_stride: dx.cols,
        onto: if accumulate { Onto::Present } else { Onto::Nothing },
    };
    let Some(site) = dropout else {
        // SAFETY: the shapes were checked when the graph was built, the rows by `args`; `dx` lies apart from both.
        unsafe { product.run(call.workers, packing) };
        return Ok(());
    };
    if !accumulate {
        // SAFETY: as above; then each row is masked where it lies.
        unsafe { product.run(call.workers, packing) };
        mask_rows(call, dx, 0..dx.rows, site, dx);
        return Ok(());
    }
    let scratch = masked_rows(call, dx.rows, dx.cols)?;
    for run in row_runs(dx.rows) {
        let left = Factor { start: product.left.start.wrapping_add(run.start * dy.cols), ..product.left };
        // SAFETY: as above, for these rows and into the workspace.
        unsafe {
            Product { rows: run.len(), left, result: scratch.ptr(), onto: Onto::Nothing, ..product }
                .run(call.workers, packing);
        }
        call.workers.rows(run.len(), dx.cols, |rows| {
            for row in rows {
                let to = run.start + row;
                // SAFETY: the workspace holds the run's rows and lies apart from `dx`.
                unsafe { add_dropped_row(dx.cols, scratch.row(row), dx.row(to), site.row(to)) };
            }
        });
    }
    Ok(())
}

/// `dW += α·dyᵀ·drop(x)`.
fn weight_grad(op: &Linear, call: &Call, dw: Matrix, dropout: Option<DropoutSite>) -> Result<(), RuntimeError> {
    let (dy, x): (Matrix, Matrix) = (call.input(0)?, call.input(1)?);
    let packing = call.packing()?;
    let product = Product {
        rows: dw.rows,
        cols: dw.cols,
        depth: x.rows,
        alpha: op.alpha,
        left: Factor::new(dy.ptr().wrapping_add(first_col(op.cols)), dy.cols).transposed(),
        right: Factor::new(x.ptr(), x.cols),
        result: dw.ptr(),
        result_stride: dw.cols,
        onto: Onto::Present,
    };
    let Some(site) = dropout else {
        // SAFETY: the shapes were checked when the graph was built, the rows by `args`; `dw` lies apart from both.
        unsafe { product.run(call.workers, packing) };
        return Ok(());
    };
    let masked = masked_rows(call, x.rows, x.cols)?;
    for run in row_runs(x.rows) {
        mask_rows(call, x, run.clone(), site, masked);
        let left = Factor { start: product.left.start.wrapping_add(run.start * dy.cols), ..product.left };
        // SAFETY: as above, for these tokens.
        unsafe {
            Product { depth: run.len(), left, right: Factor::new(masked.ptr(), x.cols), ..product }
                .run(call.workers, packing);
        }
    }
    Ok(())
}

/// Columns of a bias's gradient that one task adds up.
const BIAS_COLUMNS: usize = 256;

/// Tasks divide the columns, so that every column is summed over the rows in their order.
pub(crate) fn bias_grad(op: &BiasGrad, call: &Call) -> Result<(), RuntimeError> {
    let (dy, old, db): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.output(0)?);
    call.carry_over(old, db);
    let (first, len) = (first_col(op.cols), db.len());
    call.workers.for_each(len.div_ceil(BIAS_COLUMNS), |_, task| {
        let start = task * BIAS_COLUMNS;
        // SAFETY: the columns lie in every row, and in the bias they are this task's alone.
        unsafe {
            let from = dy.ptr().add(first + start);
            sum_columns(dy.rows, BIAS_COLUMNS.min(len - start), from, dy.cols, db.ptr().add(start));
        }
    });
    Ok(())
}

vectorized! {
    /// `total[c] += Σ_r x[r][c]`.
    unsafe fn sum_columns(rows: usize, cols: usize, x: *const f32, stride: usize, total: *mut f32) {
        let mut sums = [0.0f32; BIAS_COLUMNS];
        for row in 0..rows {
            // SAFETY: the caller vouches for the rows.
            let x = unsafe { std::slice::from_raw_parts(x.add(row * stride), cols) };
            sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        }
        // SAFETY: the caller vouches for `cols` elements.
        unsafe { fill(cols, total, |i| *total.add(i) + sums[i]) };
    }
}
