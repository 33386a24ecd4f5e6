//! Nonlinearities of the MLP, gated (`act(gate)·up`) and plain.

use std::ops::Range;

use plimsoll_graph::ops::{Activation, Gated, GatedGrad, Pointwise, PointwiseGrad};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};
use crate::elementwise::DropoutSite;
use crate::gated_adapters::{Adapted, Added, Share, Shared, TILE_COLS, TILE_ROWS};
use crate::math::{normal, sigmoid, tanh};
use crate::vector::{fill, fill_two, vectorized};

/// A function and its derivative, as types, so that each gets loops of its own.
trait Curve {
    fn value(x: f32) -> f32;
    /// The value and the slope.
    fn both(x: f32) -> (f32, f32);
}

struct Silu;
struct Gelu;
struct GeluTanh;
struct Relu;
struct Relu2;

impl Curve for Silu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x * sigmoid(x)
    }
    #[inline(always)]
    fn both(x: f32) -> (f32, f32) {
        let s = sigmoid(x);
        let value = x * s;
        (value, value.mul_add(1.0 - s, s))
    }
}

impl Curve for Gelu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        x * normal(x).0
    }
    #[inline(always)]
    fn both(x: f32) -> (f32, f32) {
        let (chance, density) = normal(x);
        (x * chance, x.mul_add(density, chance))
    }
}

/// √(2/π) and the cubic term's share.
const GELU_SLOPE: f32 = 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;

impl Curve for GeluTanh {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        Self::both(x).0
    }
    #[inline(always)]
    fn both(x: f32) -> (f32, f32) {
        let square = x * x;
        let t = tanh(GELU_SLOPE * x * square.mul_add(GELU_CUBIC, 1.0));
        let inner_slope = GELU_SLOPE * square.mul_add(3.0 * GELU_CUBIC, 1.0);
        let half = 0.5 * x;
        (half.mul_add(t, half), (half * inner_slope).mul_add(1.0 - t * t, 0.5f32.mul_add(t, 0.5)))
    }
}

impl Curve for Relu {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        if x > 0.0 { x } else { 0.0 }
    }
    #[inline(always)]
    fn both(x: f32) -> (f32, f32) {
        if x > 0.0 { (x, 1.0) } else { (0.0, 0.0) }
    }
}

impl Curve for Relu2 {
    #[inline(always)]
    fn value(x: f32) -> f32 {
        let positive = Relu::value(x);
        positive * positive
    }
    #[inline(always)]
    fn both(x: f32) -> (f32, f32) {
        let positive = Relu::value(x);
        (positive * positive, 2.0 * positive)
    }
}

/// Calls a function with the curve that a value of `Activation` names.
macro_rules! with_curve {
    ($activation:expr, $function:ident($($arg:expr),*)) => {
        match $activation {
            Activation::Silu => $function::<Silu>($($arg),*),
            Activation::Gelu => $function::<Gelu>($($arg),*),
            Activation::GeluTanh => $function::<GeluTanh>($($arg),*),
            Activation::Relu => $function::<Relu>($($arg),*),
            Activation::Relu2 => $function::<Relu2>($($arg),*),
        }
    };
}

pub(crate) fn gated(op: &Gated, call: &Call) -> Result<(), RuntimeError> {
    let (gate_up, out): (Matrix, Matrix) = (call.input(0)?, call.output(0)?);
    if let Some(adapters) = &op.adapters {
        let added = Added { adapters, low_rank: call.input(1)?, b: call.input(2)? };
        let adapted = Adapted { product: gate_up, adapters: Some(added) };
        for_each_tile(call, out.rows, out.cols, |rows, cols| {
            // SAFETY: a tile of the output, and of both halves of the input.
            unsafe { with_curve!(op.activation, gated_tile(&adapted, out, rows.clone(), cols)) };
        });
        return Ok(());
    }
    call.workers.rows(out.rows, gate_up.cols, |rows| {
        for row in rows {
            // SAFETY: both have this row, the input with two halves of the output's width.
            unsafe { with_curve!(op.activation, gated_row(out.cols, gate_up.row(row), out.row(row))) };
        }
    });
    Ok(())
}

vectorized! {
    unsafe fn gated_row<C: Curve>(len: usize, gate: *const f32, out: *mut f32) {
        // SAFETY: the caller vouches for two halves and for the output.
        unsafe {
            let up = gate.add(len);
            fill(len, out, |i| C::value(*gate.add(i)) * *up.add(i));
        }
    }
}

/// Calls `body` with the rows and columns of every tile.
fn for_each_tile(call: &Call, rows: usize, cols: usize, body: impl Fn(Range<usize>, Range<usize>) + Sync) {
    call.workers.for_each(rows.div_ceil(TILE_ROWS), |_, task| {
        let row = task * TILE_ROWS;
        for col in (0..cols).step_by(TILE_COLS) {
            body(row..rows.min(row + TILE_ROWS), col..cols.min(col + TILE_COLS));
        }
    });
}

vectorized! {
    unsafe fn gated_tile<C: Curve>(adapted: &Adapted, out: Matrix, rows: Range<usize>, cols: Range<usize>) {
        let (mut gate, mut up) = ([[0.0; TILE_COLS]; TILE_ROWS], [[0.0; TILE_COLS]; TILE_ROWS]);
        // SAFETY: the caller vouches for the tile in both halves and in the output, which lies elsewhere.
        unsafe {
            adapted.load(rows.start, rows.len(), cols.start, cols.len(), &mut gate);
            adapted.load(rows.start, rows.len(), out.cols + cols.start, cols.len(), &mut up);
            for (row, (gate, up)) in rows.zip(gate.iter().zip(&up)) {
                fill(cols.len(), out.row(row).add(cols.start), |i| C::value(gate[i]) * up[i]);
            }
        }
    }
}

pub(crate) fn gated_grad(op: &GatedGrad, call: &Call) -> Result<(), RuntimeError> {
    let (gate_up, dy, out): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.output(0)?);
    let value: Option<Matrix> = if op.with_value { Some(call.output(1)?) } else { None };
    if op.adapters.is_some() || op.last_share.is_some() {
        let added = match (&op.adapters, op.adapter_inputs()) {
            (Some(adapters), Some(at)) => Some(Added { adapters, low_rank: call.input(at)?, b: call.input(at + 1)? }),
            _ => None,
        };
        let adapted = Adapted { product: gate_up, adapters: added };
        let shared = Shared { gradient: dy, share: last_share(op, call)? };
        for_each_tile(call, dy.rows, dy.cols, |rows, cols| {
            // SAFETY: a tile of `dy`, and of both halves of the input and of the output, which is the input or lies
            // elsewhere.
            unsafe { with_curve!(op.activation, gated_grad_tile(&adapted, &shared, out, value, rows.clone(), cols)) };
        });
        return Ok(());
    }
    call.workers.rows(out.rows, out.cols, |rows| {
        for row in rows {
            if let Some(value) = value {
                // SAFETY: as in the forward pass, before the input may be written over.
                unsafe { with_curve!(op.activation, gated_row(dy.cols, gate_up.row(row), value.row(row))) };
            }
            // SAFETY: all have this row; the output is the first input or lies elsewhere.
            unsafe { with_curve!(op.activation, gated_grad_row(dy.cols, gate_up.row(row), dy.row(row), out.row(row))) };
        }
    });
    Ok(())
}

/// What is still to be added to the gradient that comes in.
fn last_share<'a>(op: &GatedGrad, call: &'a Call) -> Result<Option<Share<'a>>, RuntimeError> {
    let (Some(share), Some(at)) = (op.last_share, op.share_inputs()) else { return Ok(None) };
    let site = match share.dropout {
        Some(dropout) => Some(DropoutSite::new(call, dropout.p, dropout.site, at + 2)?),
        None => None,
    };
    Ok(Some(Share { alpha: share.alpha, dh: call.input(at)?, a: call.input(at + 1)?, site }))
}

vectorized! {
    unsafe fn gated_grad_row<C: Curve>(len: usize, gate: *const f32, dy: *const f32, out: *mut f32) {
        // SAFETY: the caller vouches for two halves in and out, and for one of dy.
        unsafe {
            let up = gate.add(len);
            fill_two(len, out, out.add(len), |i| {
                let (value, slope) = C::both(*gate.add(i));
                let dy = *dy.add(i);
                (dy * *up.add(i) * slope, dy * value)
            });
        }
    }
}

vectorized! {
    unsafe fn gated_grad_tile<C: Curve>(
        adapted: &Adapted,
        shared: &Shared,
        out: Matrix,
        value: Option<Matrix>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        let (mut gate, mut up) = ([[0.0; TILE_COLS]; TILE_ROWS], [[0.0; TILE_COLS]; TILE_ROWS]);
        // SAFETY: the caller vouches for the tile; all of it that is read from the input is read before it is written.
        unsafe {
            adapted.load(rows.start, rows.len(), cols.start, cols.len(), &mut gate);
            adapted.load(rows.start, rows.len(), out.cols / 2 + cols.start, cols.len(), &mut up);
            for (row, (gate, up)) in rows.zip(gate.iter().zip(&up)) {
                let (to, dy) = (out.row(row).add(cols.start), shared.load(row, cols.start, cols.len()));
                if let Some(value) = value {
                    fill(cols.len(), value.row(row).add(cols.start), |i| C::value(gate[i]) * up[i]);
                }
                fill_two(cols.len(), to, to.add(out.cols / 2), |i| {
                    let (value, slope) = C::both(gate[i]);
                    (dy[i] * up[i] * slope, dy[i] * value)
                });
            }
        }
    }
}

pub(crate) fn pointwise(op: &Pointwise, call: &Call) -> Result<(), RuntimeError> {
    let (x, out): (Matrix, Matrix) = (call.input(0)?, call.output(0)?);
    call.workers.rows(out.rows, out.cols, |rows| {
        let (at, len) = (rows.start, rows.len() * out.cols);
        // SAFETY: both have these rows; the output is the input or lies elsewhere.
        unsafe { with_curve!(op.0, pointwise_run(len, x.row(at), out.row(at))) };
    });
    Ok(())
}

vectorized! {
    unsafe fn pointwise_run<C: Curve>(len: usize, x: *const f32, out: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, out, |i| C::value(*x.add(i))) };
    }
}

pub(crate) fn pointwise_grad(op: &PointwiseGrad, call: &Call) -> Result<(), RuntimeError> {
    let (x, dy, out): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(1)?, call.output(0)?);
    call.workers.rows(out.rows, out.cols, |rows| {
        let (at, len) = (rows.start, rows.len() * out.cols);
        // SAFETY: all have these rows; the output is an input or lies elsewhere.
        unsafe { with_curve!(op.0, pointwise_grad_run(len, x.row(at), dy.row(at), out.row(at))) };
    });
    Ok(())
}

vectorized! {
    unsafe fn pointwise_grad_run<C: Curve>(len: usize, x: *const f32, dy: *const f32, out: *mut f32) {
        // SAFETY: the caller vouches for `len` elements of each.
        unsafe { fill(len, out, |i| C::both(*x.add(i)).1 * *dy.add(i)) };
    }
}
