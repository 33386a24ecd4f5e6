//! Once per update: the global norm, the clip factor, the step. Gradients are left zeroed.

mod adafactor;
mod adamw;
mod lion;
mod muon;
mod sgd;
mod state;
mod step;

pub(crate) use adafactor::adafactor;
pub(crate) use adamw::adamw;
pub(crate) use lion::lion;
pub(crate) use muon::muon;
pub(crate) use sgd::sgd;

use plimsoll_graph::ops::{GlobalNorm, SquareSum};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix, Rows};
use crate::vector::vectorized;

/// Parts of one gradient that are summed on their own.
const NORM_PARTS: usize = 64;
/// Smallest such part.
const NORM_PART_LEN: usize = 16 * 1024;

pub(crate) fn global_norm(op: &GlobalNorm, call: &Call) -> Result<(), RuntimeError> {
    let clip: Matrix = call.output(0)?;
    let gradients = op.gradients(call.step.inputs.len());
    for index in 0..gradients {
        call.input::<f32>(1 + index)?;
    }
    let partial: Rows<f64> = call.workspace(gradients, NORM_PARTS)?;
    call.workers.for_each(gradients * NORM_PARTS, |_, task| {
        let (index, part) = (task / NORM_PARTS, task % NORM_PARTS);
        let Ok(gradient) = call.input::<f32>(1 + index) else { return };
        // SAFETY: its place in the workspace is this task's alone.
        unsafe { *partial.row(index).add(part) = part_of_squares(gradient, part) };
    });
    let unscale = match op.scaled {
        // SAFETY: nobody writes it while the step runs.
        true => unsafe { *call.input::<f32>(1 + gradients)?.ptr() },
        false => 1.0,
    };
    // SAFETY: all parts were just written; nobody else is at work.
    let parts = unsafe { partial.slice() };
    let total: f64 = parts.chunks(NORM_PARTS).map(|parts| parts.iter().sum::<f64>()).sum();
    let norm = (total.sqrt() * f64::from(unscale)) as f32;
    let factor = unscale
        * match op.max_norm {
            _ if !norm.is_finite() => f32::NAN,
            Some(max) => (max / (norm + 1e-6)).min(1.0),
            None => 1.0,
        };
    // SAFETY: `clip` has two elements.
    unsafe { clip.ptr().cast::<[f32; 2]>().write([norm, factor]) };
    Ok(())
}

pub(crate) fn square_sum(op: &SquareSum, call: &Call) -> Result<(), RuntimeError> {
    let (guard, sums, gradient): (Matrix, Rows<f64>, Matrix) = (call.output(0)?, call.output(1)?, call.input(2)?);
    let partial: Rows<f64> = call.workspace(1, NORM_PARTS)?;
    call.workers.for_each(NORM_PARTS, |_, part| {
        // SAFETY: its place in the workspace is this task's alone.
        unsafe { *partial.ptr().add(part) = part_of_squares(gradient, part) };
    });
    // SAFETY: all parts were just written; nobody else is at work.
    let sum = unsafe { partial.slice() }.iter().sum::<f64>();
    // SAFETY: both were checked when the step was made: a place for every gradient, and two numbers.
    unsafe {
        *sums.ptr().add(op.index) = sum;
        let guard = guard.ptr().cast::<[f32; 2]>();
        let spoilt = if (sum.sqrt() as f32).is_finite() { (*guard)[0] } else { f32::NAN };
        *guard = [spoilt, 1.0 + spoilt];
    }
    Ok(())
}

pub(crate) fn total_norm(call: &Call) -> Result<(), RuntimeError> {
    let (clip, sums): (Matrix, Rows<f64>) = (call.output(0)?, call.input(1)?);
    // SAFETY: nobody writes to the sums while the step runs.
    let norm = unsafe { sums.slice() }.iter().sum::<f64>().sqrt() as f32;
    let factor = if norm.is_finite() { 1.0 } else { f32::NAN };
    // SAFETY: `clip` has two elements.
    unsafe { clip.ptr().cast::<[f32; 2]>().write([norm, factor]) };
    Ok(())
}

/// The sum of squares of one of the [`NORM_PARTS`] of a gradient.
fn part_of_squares(gradient: Matrix, part: usize) -> f64 {
    let len = gradient.len().div_ceil(NORM_PARTS).max(NORM_PART_LEN).next_multiple_of(SQUARE_LANES);
    let start = (part * len).min(gradient.len());
    // SAFETY: the part lies in the gradient.
    unsafe { sum_squares(gradient.ptr().add(start), len.min(gradient.len() - start)) }
}

/// Of a whole matrix, in parts that follow from its length alone.
fn sum_squares_of(call: &Call, x: Matrix) -> f64 {
    let mut sums = [0.0f64; NORM_PARTS];
    let partial = Rows::of(&mut sums);
    let len = x.len().div_ceil(NORM_PARTS).max(NORM_PART_LEN).next_multiple_of(SQUARE_LANES);
    call.workers.for_each(x.len().div_ceil(len), |_, part| {
        let start = part * len;
        // SAFETY: the part lies in the matrix; its sum is this task's alone.
        unsafe { *partial.row(part) = sum_squares(x.ptr().add(start), len.min(x.len() - start)) };
    });
    sums.iter().sum()
}

const SQUARE_LANES: usize = 32;

vectorized! {
    /// In double precision, in an order that depends on the length alone.
    unsafe fn sum_squares(x: *const f32, len: usize) -> f64 {
        // SAFETY: the caller vouches for `len` elements.
        let x = unsafe { std::slice::from_raw_parts(x, len) };
        let mut lanes = [0.0f64; SQUARE_LANES];
        let (whole, rest) = x.as_chunks::<SQUARE_LANES>();
        for chunk in whole {
            for (lane, &x) in lanes.iter_mut().zip(chunk) {
                *lane = f64::from(x).mul_add(f64::from(x), *lane);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane = f64::from(x).mul_add(f64::from(x), *lane);
        }
        lanes.iter().sum()
    }
}
