//! Lion: the sign of an interpolated momentum.

use plimsoll_graph::ops::Lion;
use plimsoll_runtime::RuntimeError;

use super::state::StateMemory;
use super::step::Update;
use crate::args::Call;
use crate::vector::vectorized;

#[derive(Clone, Copy)]
struct Step {
    clip: f32,
    lr: f32,
    keep: f32,
    beta1_complement: f32,
    beta2_complement: f32,
}

pub(crate) fn lion(op: &Lion, call: &Call) -> Result<(), RuntimeError> {
    let update = Update::new(call, 3, op.master)?;
    let momentum = StateMemory::output(call, 2)?;
    if update.left_out(call) {
        return Ok(());
    }
    let lr = update.hyper[0];
    let step = Step {
        clip: update.clip,
        lr,
        keep: 1.0 - lr * op.weight_decay,
        beta1_complement: (1.0 - op.beta1) as f32,
        beta2_complement: (1.0 - op.beta2) as f32,
    };
    // SAFETY: three different buffers, and this part of each is this task's alone.
    update.elementwise(call, [momentum], |len, p, g, [m]| unsafe { run(len, p, g, m, step) });
    Ok(())
}

vectorized! {
    unsafe fn run(len: usize, p: *mut f32, g: *mut f32, m: *mut f32, step: Step) {
        // SAFETY: the caller vouches for `len` elements of different buffers.
        let (p, g, m) = unsafe {
            (
                std::slice::from_raw_parts_mut(p, len),
                std::slice::from_raw_parts_mut(g, len),
                std::slice::from_raw_parts_mut(m, len),
            )
        };
        slices(p, g, m, step);
    }
}

/// Behind a function of its own so that the compiler knows the three do not overlap.
#[inline(always)]
fn slices(p: &mut [f32], g: &mut [f32], m: &mut [f32], step: Step) {
    for ((p, g), m) in p.iter_mut().zip(g).zip(m) {
        let grad = *g * step.clip;
        *g = 0.0;
        let direction = (grad - *m).mul_add(step.beta1_complement, *m);
        // Rust's `signum` of zero is one.
        let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
        *p = (-step.lr).mul_add(sign, *p * step.keep);
        *m = (grad - *m).mul_add(step.beta2_complement, *m);
    }
}
