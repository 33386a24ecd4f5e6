//! Optimizer states in memory: float32 as they lie, anything else through a block of float32 numbers.

use half::bf16;
use plimsoll_graph::{Code, DType, Scales};
use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Element, Matrix, Rows};
use crate::vector::{maximum, vectorized};

/// Elements that are held in float32 at a time.
pub(super) const BLOCK: usize = 256;

impl Element for bf16 {
    const DTYPES: &'static [DType] = &[DType::BF16];
}

#[derive(Clone, Copy)]
pub(super) enum StateMemory {
    Float32(Matrix),
    Bfloat16(Rows<bf16>),
    Int8(Int8),
}

/// A code for every element, and a scale for every block of them.
#[derive(Clone, Copy)]
pub(super) struct Int8 {
    codes: *mut u8,
    scales: *mut f32,
    code: Code,
}

// SAFETY: plain addresses; tasks have disjoint blocks.
unsafe impl Send for Int8 {}
// SAFETY: as above.
unsafe impl Sync for Int8 {}

impl StateMemory {
    pub(super) fn output(call: &Call, index: usize) -> Result<Self, RuntimeError> {
        let Some(buffer) = call.step.outputs.get(index) else { return Ok(Self::Float32(call.output(index)?)) };
        match (buffer.storage.element, buffer.storage.blocks) {
            (DType::BF16, None) => Ok(Self::Bfloat16(call.output(index)?)),
            (DType::F32, Some(format)) if format.elements == BLOCK && format.scales == Scales::F32 => {
                let codes = call.output_bytes(index)?;
                let scales_at = format.scales_at(buffer.shape.elements()).expect("its bytes were counted");
                let scales = codes.wrapping_add(scales_at).cast();
                Ok(Self::Int8(Int8 { codes, scales, code: format.code }))
            }
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
            Self::Int8(Int8 { codes, scales, code }) => {
                // SAFETY: the caller vouches for the elements, which are those of one block.
                let (codes, scale) =
                    unsafe { (std::slice::from_raw_parts(codes.add(start), len), *scales.add(start / BLOCK)) };
                let numbers = code.numbers();
                block.iter_mut().zip(codes).for_each(|(number, &code)| *number = numbers[usize::from(code)] * scale);
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
            Self::Int8(Int8 { codes, scales, code }) => {
                let scale = maximum(block.len(), |index| block[index].abs()).max(0.0);
                let numbers = code.numbers().try_into().expect("states have codes of eight bits");
                // SAFETY: the caller vouches for the elements, which are those of one block.
                unsafe {
                    *scales.add(start / BLOCK) = scale;
                    encode(block, scale, numbers, codes.add(start));
                }
            }
        }
    }
}

vectorized! {
    /// As `Code::nearest` of each number over the scale, all elements a step at a time.
    unsafe fn encode(block: &[f32], scale: f32, numbers: &[f32; 256], codes: *mut u8) {
        let mut shares = [0.0f32; BLOCK];
        if scale > 0.0 {
            shares.iter_mut().zip(block).for_each(|(share, number)| *share = number / scale);
        }
        let mut found = [0u32; BLOCK];
        for half in [128u32, 64, 32, 16, 8, 4, 2, 1] {
            for (code, &share) in found.iter_mut().zip(&shares) {
                let above = ((*code + half) & 255) as usize;
                let middle = 0.5 * (numbers[above - 1] + numbers[above]);
                *code += if share > middle { half } else { 0 };
            }
        }
        for (index, &code) in found.iter().take(block.len()).enumerate() {
            // SAFETY: the caller vouches for as many codes.
            unsafe { *codes.add(index) = code as u8 };
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
