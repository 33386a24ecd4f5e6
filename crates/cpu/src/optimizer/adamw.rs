//! Adam with decoupled weight decay.

use plimsoll_graph::ops::AdamW;
use plimsoll_runtime::RuntimeError;

use super::state::StateMemory;
use super::step::Update;
use crate::args::Call;
use crate::vector::vectorized;

/// The numbers of one AdamW update.
#[derive(Clone, Copy)]
struct Step {
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
    let update = Update::new(call, 4, op.master)?;
    let states = [StateMemory::output(call, 2)?, StateMemory::output(call, 3)?];
    if update.left_out(call) {
        return Ok(());
    }
    let [lr, correction1, correction2, _] = update.hyper;
    let step = Step {
        clip: update.clip,
        beta1_complement: (1.0 - op.beta1) as f32,
        beta2: op.beta2 as f32,
        beta2_complement: (1.0 - op.beta2) as f32,
        keep: 1.0 - lr * op.weight_decay,
        step_size: lr / correction1,
        root_correction: 1.0 / correction2.sqrt(),
        eps: op.eps,
    };
    update.elementwise(call, states, |len, p, g, [m, v]| {
        // SAFETY: four different buffers, and this part of each is this task's alone.
        unsafe { run(len, p, g, m, v, step) };
    });
    Ok(())
}

vectorized! {
    unsafe fn run(len: usize, p: *mut f32, g: *mut f32, m: *mut f32, v: *mut f32, step: Step) {
        // SAFETY: the caller vouches for `len` elements of four different buffers.
        let (p, g, m, v) = unsafe {
            (
                std::slice::from_raw_parts_mut(p, len),
                std::slice::from_raw_parts_mut(g, len),
                std::slice::from_raw_parts_mut(m, len),
                std::slice::from_raw_parts_mut(v, len),
            )
        };
        slices(p, g, m, v, step);
    }
}

/// Behind a function of its own so that the compiler knows the four do not overlap.
#[inline(always)]
fn slices(p: &mut [f32], g: &mut [f32], m: &mut [f32], v: &mut [f32], step: Step) {
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
