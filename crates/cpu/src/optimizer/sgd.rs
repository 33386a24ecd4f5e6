//! Stochastic gradient descent with momentum.

use plimsoll_graph::ops::Sgd;
use plimsoll_runtime::RuntimeError;

use super::state::StateMemory;
use super::step::Update;
use crate::args::Call;
use crate::vector::vectorized;

#[derive(Clone, Copy)]
struct Step {
    clip: f32,
    lr: f32,
    momentum: f32,
    weight_decay: f32,
}

pub(crate) fn sgd(op: &Sgd, call: &Call) -> Result<(), RuntimeError> {
    let update = Update::new(call, 2, op.master)?;
    let momentum = if op.momentum != 0.0 { Some(StateMemory::output(call, 2)?) } else { None };
    if update.left_out(call) {
        return Ok(());
    }
    let step = Step { clip: update.clip, lr: update.hyper[0], momentum: op.momentum, weight_decay: op.weight_decay };
    match momentum {
        // SAFETY: two different buffers, and this part of each is this task's alone.
        None => update.elementwise(call, [], |len, p, g, []| unsafe { plain(len, p, g, step) }),
        // SAFETY: as above, three buffers.
        Some(state) => update.elementwise(call, [state], |len, p, g, [m]| unsafe { heavy_ball(len, p, g, m, step) }),
    }
    Ok(())
}

vectorized! {
    unsafe fn plain(len: usize, p: *mut f32, g: *mut f32, step: Step) {
        // SAFETY: the caller vouches for `len` elements of different buffers.
        let (p, g) = unsafe { (std::slice::from_raw_parts_mut(p, len), std::slice::from_raw_parts_mut(g, len)) };
        plain_slices(p, g, step);
    }
}

vectorized! {
    unsafe fn heavy_ball(len: usize, p: *mut f32, g: *mut f32, m: *mut f32, step: Step) {
        // SAFETY: the caller vouches for `len` elements of different buffers.
        let (p, g, m) = unsafe {
            (
                std::slice::from_raw_parts_mut(p, len),
                std::slice::from_raw_parts_mut(g, len),
                std::slice::from_raw_parts_mut(m, len),
            )
        };
        momentum_slices(p, g, m, step);
    }
}

#[inline(always)]
fn plain_slices(p: &mut [f32], g: &mut [f32], step: Step) {
    for (p, g) in p.iter_mut().zip(g) {
        let grad = p.mul_add(step.weight_decay, *g * step.clip);
        *g = 0.0;
        *p = (-step.lr).mul_add(grad, *p);
    }
}

#[inline(always)]
fn momentum_slices(p: &mut [f32], g: &mut [f32], m: &mut [f32], step: Step) {
    for ((p, g), m) in p.iter_mut().zip(g).zip(m) {
        let grad = p.mul_add(step.weight_decay, *g * step.clip);
        *g = 0.0;
        *m = m.mul_add(step.momentum, grad);
        *p = (-step.lr).mul_add(*m, *p);
    }
}
