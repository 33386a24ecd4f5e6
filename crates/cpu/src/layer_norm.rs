//! Layer norm of a token's features.

use plimsoll_graph::CPU_PARTIAL_ROWS;
use plimsoll_graph::ops::{LayerNorm, LayerNormGrad};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};
use crate::norm::{add_shares, clear_share};
use crate::vector::{fill, sum, vectorized};

pub(crate) fn layer_norm(op: &LayerNorm, call: &Call) -> Result<(), RuntimeError> {
    let x: Matrix = call.input(0)?;
    let weight: Option<Matrix> = if op.weight { Some(call.input(1)?) } else { None };
    let bias: Option<Matrix> = if op.bias { Some(call.input(1 + usize::from(op.weight))?) } else { None };
    let (normed, mean, rstd): (Matrix, Matrix, Matrix) = (call.output(0)?, call.output(1)?, call.output(2)?);
    let (cols, eps) = (x.cols, op.eps);
    call.workers.rows(x.rows, cols, |rows| {
        for row in rows {
            let parts = NormRow {
                x: x.row(row),
                weight: Matrix::ptr_or_null(weight),
                bias: Matrix::ptr_or_null(bias),
                out: normed.row(row),
            };
            // SAFETY: every buffer has this row; the norm takes the place of the input only element by element.
            unsafe { (*mean.row(row), *rstd.row(row)) = norm_row(cols, parts, eps) };
        }
    });
    Ok(())
}

/// What the norm of one row reads and writes. Null: not there.
#[derive(Clone, Copy)]
struct NormRow {
    x: *const f32,
    weight: *const f32,
    bias: *const f32,
    out: *mut f32,
}

vectorized! {
    /// `out = (x - mean)·rstd·[w] + [b]`; returns mean and rstd.
    unsafe fn norm_row(len: usize, row: NormRow, eps: f32) -> (f32, f32) {
        let NormRow { x, weight, bias, out } = row;
        // SAFETY: the caller vouches for `len` elements of each pointer that is not null.
        unsafe {
            let mean = sum(len, |i, partial| partial + *x.add(i)) / len as f32;
            let squares = sum(len, |i, partial| (*x.add(i) - mean).mul_add(*x.add(i) - mean, partial));
            let rstd = 1.0 / (squares / len as f32 + eps).sqrt();
            match (weight.is_null(), bias.is_null()) {
                (false, false) => {
                    fill(len, out, |i| ((*x.add(i) - mean) * rstd).mul_add(*weight.add(i), *bias.add(i)));
                }
                (false, true) => fill(len, out, |i| (*x.add(i) - mean) * rstd * *weight.add(i)),
                (true, false) => fill(len, out, |i| (*x.add(i) - mean) * rstd + *bias.add(i)),
                (true, true) => fill(len, out, |i| (*x.add(i) - mean) * rstd),
            }
            (mean, rstd)
        }
    }
}

pub(crate) fn layer_norm_grad(op: &LayerNormGrad, call: &Call) -> Result<(), RuntimeError> {
    let (x, mean, rstd): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.input(2)?);
    let (d_normed, dx): (Matrix, Matrix) = (call.input(3)?, call.output(0)?);
    let weight: Option<Matrix> = if op.weight { Some(call.input(4)?) } else { None };
    let so_far: Option<Matrix> = if op.accumulate { Some(call.input(4 + usize::from(op.weight))?) } else { None };
    let (cols, parameters) = (x.cols, op.parameters());
    let stride = parameters * cols;
    let scratch: Matrix = call.workspace(if parameters > 0 { CPU_PARTIAL_ROWS } else { 0 }, stride)?;
    let shares = call.workers.shares(x.rows, |share, rows| {
        let sums = clear_share(parameters > 0, scratch, share);
        let db = sums.wrapping_add(if op.weight_grad { cols } else { 0 });
        for row in rows {
            // SAFETY: every buffer has this row; dx takes the place of an input only element by element.
            unsafe {
                let parts = GradRow {
                    x: x.row(row),
                    mean: *mean.row(row),
                    rstd: *rstd.row(row),
                    dy: d_normed.row(row),
                    weight: Matrix::ptr_or_null(weight),
                    so_far: so_far.map_or(std::ptr::null(), |m| m.row(row).cast_const()),
                    dx: dx.row(row),
                    dw: if op.weight_grad { sums } else { std::ptr::null_mut() },
                    db: if op.bias_grad { db } else { std::ptr::null_mut() },
                };
                norm_grad_row(cols, parts);
            }
        }
    });
    for parameter in 0..parameters {
        let gradient: Matrix = call.output(1 + parameter)?;
        // SAFETY: `shares` rows of the workspace were just filled, each with a part for every parameter.
        unsafe { add_shares(gradient.ptr(), scratch.ptr().add(parameter * cols), shares, cols, stride) };
    }
    Ok(())
}

/// What the gradient of one norm reads and writes. Null: not there.
#[derive(Clone, Copy)]
struct GradRow {
    x: *const f32,
    mean: f32,
    rstd: f32,
    dy: *const f32,
    weight: *const f32,
    so_far: *const f32,
    dx: *mut f32,
    /// Running sums of the parameters' gradients.
    dw: *mut f32,
    db: *mut f32,
}

vectorized! {
    /// `dx = rstd·(g - mean(g) - x̂·mean(g·x̂))` with `g = dy·w` and `x̂ = (x - mean)·rstd`; `dw += dy·x̂`, `db += dy`.
    unsafe fn norm_grad_row(len: usize, row: GradRow) {
        let GradRow { x, mean, rstd, dy, weight, so_far, dx, dw, db } = row;
        // SAFETY: the caller vouches for `len` elements of each pointer that is not null.
        unsafe {
            let unit = |i: usize| (*x.add(i) - mean) * rstd;
            if !dw.is_null() {
                fill(len, dw, |i| (*dy.add(i)).mul_add(unit(i), *dw.add(i)));
            }
            if !db.is_null() {
                fill(len, db, |i| *dy.add(i) + *db.add(i));
            }
            let mean_of = |total: f32| total / len as f32;
            if weight.is_null() {
                let shift = mean_of(sum(len, |i, partial| partial + *dy.add(i)));
                let pull = mean_of(sum(len, |i, partial| (*dy.add(i)).mul_add(unit(i), partial)));
                let slope = |i: usize| rstd * (*dy.add(i) - shift - unit(i) * pull);
                match so_far.is_null() {
                    false => fill(len, dx, |i| *so_far.add(i) + slope(i)),
                    true => fill(len, dx, slope),
                }
            } else {
                let g = |i: usize| *dy.add(i) * *weight.add(i);
                let shift = mean_of(sum(len, |i, partial| partial + g(i)));
                let pull = mean_of(sum(len, |i, partial| g(i).mul_add(unit(i), partial)));
                let slope = |i: usize| rstd * (g(i) - shift - unit(i) * pull);
                match so_far.is_null() {
                    false => fill(len, dx, |i| *so_far.add(i) + slope(i)),
                    true => fill(len, dx, slope),
                }
            }
        }
    }
}
