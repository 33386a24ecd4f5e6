//! What element-wise updates share: numbers of the update, the division into tasks, states in whatever storage.

use plimsoll_runtime::RuntimeError;

use super::state::{BLOCK, Draws, StateMemory};
use crate::args::{Call, Matrix};
use crate::backend::DEVICE;
use crate::vector::fill;

/// Elements one task of an update handles.
const UPDATE_LEN: usize = 16 * 1024;
const _: () = assert!(UPDATE_LEN.is_multiple_of(BLOCK));

/// A parameter with its gradient, and what the host says about the update.
pub(super) struct Update {
    pub p: Matrix,
    pub g: Matrix,
    pub hyper: [f32; 4],
    /// What gradients are multiplied by; not a number where the update is to be left out.
    pub clip: f32,
    pub draws: Draws,
}

impl Update {
    /// `hyper_at` is the input that holds `hyper`; `clip` is the next. Master weights belong to narrower types, which this
    /// backend does not train in.
    pub(super) fn new(call: &Call, hyper_at: usize, master: bool) -> Result<Self, RuntimeError> {
        if master {
            let dtype = call.step.inputs[0].dtype().name();
            return Err(RuntimeError::Unsupported { device: DEVICE.to_owned(), op: call.name(), dtype });
        }
        // SAFETY: neither is written while the step runs.
        let numbers = unsafe { call.input::<f32>(hyper_at)?.slice() };
        // SAFETY: as above.
        let clip = unsafe { call.input::<f32>(hyper_at + 1)?.slice() };
        let hyper = [numbers[0], numbers[1], numbers[2], numbers[3]];
        let draws = Draws::new(call.step.inputs[0].slot.map_or(0, |slot| slot.0), hyper);
        Ok(Self { p: call.output(0)?, g: call.output(1)?, hyper, clip: clip[1], draws })
    }

    /// Whether the update is left out. Then only the gradient is zeroed.
    pub(super) fn left_out(&self, call: &Call) -> bool {
        if self.clip.is_nan() {
            self.zero_gradient(call);
        }
        self.clip.is_nan()
    }

    pub(super) fn zero_gradient(&self, call: &Call) {
        for_each_element(call, self.g, |_| 0.0);
    }

    /// Calls `run(len, p, g, states)` with runs of elements, states in float32 whatever they are stored in.
    pub(super) fn elementwise<const STATES: usize>(
        &self,
        call: &Call,
        states: [StateMemory; STATES],
        run: impl Fn(usize, *mut f32, *mut f32, [*mut f32; STATES]) + Sync,
    ) {
        let Self { p, g, draws, .. } = self;
        let run_len = if states.iter().all(StateMemory::is_float32) { UPDATE_LEN } else { BLOCK };
        call.workers.for_each(p.len().div_ceil(UPDATE_LEN), |_, task| {
            let end = p.len().min((task + 1) * UPDATE_LEN);
            let mut blocks = [[0.0f32; BLOCK]; STATES];
            for start in (task * UPDATE_LEN..end).step_by(run_len) {
                let len = run_len.min(end - start);
                let mut opened = [std::ptr::null_mut(); STATES];
                for ((opened, state), block) in opened.iter_mut().zip(&states).zip(&mut blocks) {
                    // SAFETY: this part of each state is this task's alone.
                    *opened = unsafe { state.open(start, len, block) };
                }
                run(len, p.ptr().wrapping_add(start), g.ptr().wrapping_add(start), opened);
                for (index, (state, block)) in states.iter().zip(&blocks).enumerate() {
                    // SAFETY: as above.
                    unsafe { state.close(start, &block[..len.min(BLOCK)], &draws.of_state(index)) };
                }
            }
        });
    }
}

/// `out[i] = value(i)`, divided among threads. `value` may read element `i` of `out` itself.
pub(super) fn for_each_element(call: &Call, out: Matrix, value: impl Fn(usize) -> f32 + Sync) {
    call.workers.for_each(out.len().div_ceil(UPDATE_LEN), |_, task| {
        let start = task * UPDATE_LEN;
        // SAFETY: this part of the matrix is this task's alone.
        unsafe { fill(UPDATE_LEN.min(out.len() - start), out.ptr().add(start), |index| value(start + index)) };
    });
}
