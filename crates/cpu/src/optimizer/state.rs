//! Optimizer states in memory: float32 as they lie, anything else through a block of float32 numbers.

use half::bf16;
use plimsoll_graph::DType;
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Element, Matrix, Rows};

/// Elements that are held in float32 at a time.
pub(super) const BLOCK: usize = 256;

impl Element for bf16 {
    const DTYPES: &'static [DType] = &[DType::BF16];
}

#[derive(Clone, Copy)]
pub(super) enum StateMemory {
    Float32(Matrix),
    Bfloat16(Rows<bf16>),
}

impl StateMemory {
    pub(super) fn output(call: &Call, index: usize) -> Result<Self, RuntimeError> {
        match call.step.outputs.get(index).map(|buffer| buffer.storage.element) {
            Some(DType::BF16) => Ok(Self::Bfloat16(call.output(index)?)),
            _ => Ok(Self::Float32(call.output(index)?)),
        }
    }

    pub(super) fn is_float32(&self) -> bool {
        matches!(self, Self::Float32(_))
    }

    /// The address of some elements in float32: in `block`, or where they are stored.
    ///
    /// # Safety
    /// The elements must exist and nobody else may use them; no more than a block unless they are stored in float32.
    pub(super) unsafe fn open(&self, start: usize, len: usize, block: &mut [f32; BLOCK]) -> *mut f32 {
        match self {
            Self::Float32(state) => return state.ptr().wrapping_add(start),
            Self::Bfloat16(state) => {
                // SAFETY: the caller vouches for the elements.
                let stored = unsafe { std::slice::from_raw_parts(state.ptr().add(start), len) };
                block.iter_mut().zip(stored).for_each(|(number, stored)| *number = stored.to_f32());
            }
        }
        block.as_mut_ptr()
    }

    /// Stores what [`StateMemory::open`] put into a block.
    ///
    /// # Safety
    /// As for [`StateMemory::open`].
    pub(super) unsafe fn close(&self, start: usize, block: &[f32], draws: &StateDraws) {
        match self {
            Self::Float32(_) => {}
            Self::Bfloat16(state) => {
                // SAFETY: the caller vouches for the elements.
                let stored = unsafe { std::slice::from_raw_parts_mut(state.ptr().add(start), block.len()) };
                for (index, (stored, &number)) in stored.iter_mut().zip(block).enumerate() {
                    *stored = round_stochastic(number, draws.draw(start + index));
                }
            }
        }
    }
}

/// One of the two neighbours, the nearer one the more often: on average nothing is lost, however small a step is beside the
/// number it is added to.
fn round_stochastic(number: f32, draw: u32) -> bf16 {
    match number.is_finite() {
        true => bf16::from_bits((number.to_bits().wrapping_add(draw >> 16) >> 16) as u16),
        false => bf16::from_f32(number),
    }
}

/// Scatters the bits of a number, one to one.
fn mix(x: u32) -> u32 {
    let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// Random draws by counter: a hash of the parameter, the update, the state and the element, so they are the same wherever
/// the parameter lies and however it is divided among threads.
#[derive(Clone, Copy)]
pub(super) struct Draws(u32);

impl Draws {
    /// `site` tells parameters apart; `hyper` holds the number of the update.
    pub(super) fn new(site: u32, hyper: [f32; 4]) -> Self {
        let update = hyper.iter().fold(0x9e37_79b9, |hash: u32, number| mix(hash.wrapping_add(number.to_bits())));
        Self(mix(update ^ mix(site.wrapping_add(0x85eb_ca6b))))
    }

    pub(super) fn of_state(self, index: usize) -> StateDraws {
        StateDraws(mix(self.0 ^ (index as u32 + 1).wrapping_mul(0x9e37_79b1)))
    }
}

/// The draws of one state.
pub(super) struct StateDraws(u32);

impl StateDraws {
    fn draw(&self, element: usize) -> u32 {
        let (low, high) = (element as u32, (element >> 32) as u32);
        mix(low.wrapping_mul(0x9e37_79b1).wrapping_add(self.0) ^ high.wrapping_mul(0x85eb_ca6b))
    }
}
