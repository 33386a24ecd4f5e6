//! Once per update: the global norm, the clip factor, the step. Gradients are left zeroed.

use plimsoll_graph::ops::{AdamW, GlobalNorm, Sgd};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix, Rows};
use crate::backend::DEVICE;
use crate::vector::vectorized;

/// Parts of one gradient that are summed on their own.
const NORM_PARTS: usize = 64;
/// Smallest such part.
const NORM_PART_LEN: usize = 16 * 1024;
/// Elements one task of an update handles.
const UPDATE_LEN: usize = 16 * 1024;

pub(crate) fn global_norm(op: &GlobalNorm, call: &Call) -> Result<(), RuntimeError> {
    let clip: Matrix = call.output(0)?;
    let gradients = call.step.inputs.len() - 1;
    for index in 0..gradients {
        call.input::<f32>(1 + index)?;
    }
    let partial: Rows<f64> = call.workspace(gradients, NORM_PARTS)?;
    call.workers.for_each(gradients * NORM_PARTS, |_, task| {
        let (index, part) = (task / NORM_PARTS, task % NORM_PARTS);
        let Ok(gradient) = call.input::<f32>(1 + index) else { return };
        let len = gradient.len().div_ceil(NORM_PARTS).max(NORM_PART_LEN).next_multiple_of(SQUARE_LANES);
        let start = (part * len).min(gradient.len());
        let count = len.min(gradient.len() - start);
        // SAFETY: the part lies in the gradient; its place in the workspace is this task's alone.
        unsafe { *partial.row(index).add(part) = sum_squares(gradient.ptr().add(start), count) };
    });
    // SAFETY: all parts were just written; nobody else is at work.
    let norm = unsafe { partial.slice() }.iter().sum::<f64>().sqrt() as f32;
    let factor = match op.max_norm {
        _ if !norm.is_finite() => f32::NAN,
        Some(max) => (max / (norm + 1e-6)).min(1.0),
        None => 1.0,
    };
    // SAFETY: `clip` has two elements.
    unsafe { clip.ptr().cast::<[f32; 2]>().write([norm, factor]) };
    Ok(())
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

/// Master weights belong to narrower types, which this backend does not train in.
fn refuse_master(call: &Call, master: bool) -> Result<(), RuntimeError> {
    if !master {
        return Ok(());
    }
    let dtype = call.step.inputs[0].dtype().name();
    Err(RuntimeError::Unsupported { device: DEVICE.to_owned(), op: call.name(), dtype })
}

/// The update that does nothing: only the gradient is zeroed.
fn leave(call: &Call, g: &Matrix) {
    call.workers.for_each(g.len().div_ceil(UPDATE_LEN), |_, task| {
        let start = task * UPDATE_LEN;
        let len = UPDATE_LEN.min(g.len() - start);
        // SAFETY: this part of the gradient is this task's alone; zero is all zero bits.
        unsafe { g.ptr().add(start).write_bytes(0, len) };
    });
}

/// The numbers of one AdamW update.
#[derive(Clone, Copy)]
struct AdamWStep {
    clip: f32,
    beta1_complement: f32,
    beta2: f32,
    beta2_complement: f32,
    keep: f32,
    step_size: f32,
    /// 1 / √(1 - β2ᵗ).
    root_correction: f32,
    eps: f32,
}

pub(crate) fn adamw(op: &AdamW, call: &Call) -> Result<(), RuntimeError> {
    refuse_master(call, op.master)?;
    let (p, g, m, v): (Matrix, Matrix, Matrix, Matrix) =
        (call.output(0)?, call.output(1)?, call.output(2)?, call.output(3)?);
    // SAFETY: neither is written while the step runs.
    let (hyper, clip) = unsafe { (call.input::<f32>(4)?.slice(), call.input::<f32>(5)?.slice()) };
    if clip[1].is_nan() {
        leave(call, &g);
        return Ok(());
    }
    let (lr, correction1, correction2) = (hyper[0], hyper[1], hyper[2]);
    let step = AdamWStep {
        clip: clip[1],
        beta1_complement: (1.0 - op.beta1) as f32,
        beta2: op.beta2 as f32,
        beta2_complement: (1.0 - op.beta2) as f32,
        keep: 1.0 - lr * op.weight_decay,
        step_size: lr / correction1,
        root_correction: 1.0 / correction2.sqrt(),
        eps: op.eps,
    };
    call.workers.for_each(p.len().div_ceil(UPDATE_LEN), |_, task| {
        let start = task * UPDATE_LEN;
        let len = UPDATE_LEN.min(p.len() - start);
        // SAFETY: four different buffers, and this part of each is this task's alone.
        unsafe { adamw_run(len, p.ptr().add(start), g.ptr().add(start), m.ptr().add(start), v.ptr().add(start), step) };
    });
    Ok(())
}

vectorized! {
    unsafe fn adamw_run(len: usize, p: *mut f32, g: *mut f32, m: *mut f32, v: *mut f32, step: AdamWStep) {
        // SAFETY: the caller vouches for `len` elements of four different buffers.
        let (p, g, m, v) = unsafe {
            (
                std::slice::from_raw_parts_mut(p, len),
                std::slice::from_raw_parts_mut(g, len),
                std::slice::from_raw_parts_mut(m, len),
                std::slice::from_raw_parts_mut(v, len),
            )
        };
        adamw_slices(p, g, m, v, step);
    }
}

/// Behind a function of its own so that the compiler knows the four do not overlap.
#[inline(always)]
fn adamw_slices(p: &mut [f32], g: &mut [f32], m: &mut [f32], v: &mut [f32], step: AdamWStep) {
    for (((p, g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
        let grad = *g * step.clip;
        *g = 0.0;
        let first = (grad - *m).mul_add(step.beta1_complement, *m);
        let second = v.mul_add(step.beta2, step.beta2_complement * grad * grad);
        *m = first;
        *v = second;
        let denominator = second.sqrt().mul_add(step.root_correction, step.eps);
        *p = (-step.step_size).mul_add(first / denominator, *p * step.keep);
    }
}

pub(crate) fn sgd(op: &Sgd, call: &Call) -> Result<(), RuntimeError> {
    refuse_master(call, op.master)?;
    let (p, g): (Matrix, Matrix) = (call.output(0)?, call.output(1)?);
    let momentum: Option<Matrix> = if op.momentum != 0.0 { Some(call.output(2)?) } else { None };
    // SAFETY: neither is written while the step runs.
    let (hyper, clip) = unsafe { (call.input::<f32>(2)?.slice(), call.input::<f32>(3)?.slice()) };
    if clip[1].is_nan() {
        leave(call, &g);
        return Ok(());
    }
    let step = SgdStep { clip: clip[1], lr: hyper[0], momentum: op.momentum, weight_decay: op.weight_decay };
    call.workers.for_each(p.len().div_ceil(UPDATE_LEN), |_, task| {
        let start = task * UPDATE_LEN;
        let len = UPDATE_LEN.min(p.len() - start);
        let m = momentum.map_or(std::ptr::null_mut(), |m| m.ptr().wrapping_add(start));
        // SAFETY: different buffers, and this part of each is this task's alone.
        unsafe { sgd_run(len, p.ptr().add(start), g.ptr().add(start), m, step) };
    });
    Ok(())
}

#[derive(Clone, Copy)]
struct SgdStep {
    clip: f32,
    lr: f32,
    momentum: f32,
    weight_decay: f32,
}

vectorized! {
    /// A null `m`: no momentum.
    unsafe fn sgd_run(len: usize, p: *mut f32, g: *mut f32, m: *mut f32, step: SgdStep) {
        // SAFETY: the caller vouches for `len` elements of different buffers.
        let (p, g) = unsafe { (std::slice::from_raw_parts_mut(p, len), std::slice::from_raw_parts_mut(g, len)) };
        if m.is_null() {
            plain_slices(p, g, step);
        } else {
            // SAFETY: as above.
            momentum_slices(p, g, unsafe { std::slice::from_raw_parts_mut(m, len) }, step);
        }
    }
}

#[inline(always)]
fn plain_slices(p: &mut [f32], g: &mut [f32], step: SgdStep) {
    for (p, g) in p.iter_mut().zip(g) {
        let grad = p.mul_add(step.weight_decay, *g * step.clip);
        *g = 0.0;
        *p = (-step.lr).mul_add(grad, *p);
    }
}

#[inline(always)]
fn momentum_slices(p: &mut [f32], g: &mut [f32], m: &mut [f32], step: SgdStep) {
    for ((p, g), m) in p.iter_mut().zip(g).zip(m) {
        let grad = p.mul_add(step.weight_decay, *g * step.clip);
        *g = 0.0;
        *m = m.mul_add(step.momentum, grad);
        *p = (-step.lr).mul_add(*m, *p);
    }
}
