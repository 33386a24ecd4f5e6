//! Weights drawn where they are needed.

use plimsoll_graph::DType;
use plimsoll_runtime::{Distribution, Draw, RuntimeError};

use crate::call::{Args, type_suffix};
use crate::device::Device;

const MODULE: &str = "draw";
const THREADS: u32 = 256;

/// Fills `bytes` at `at`, which is a multiple of sixteen.
pub(crate) fn draw(device: &Device, at: u64, bytes: usize, dtype: DType, draw: Draw) -> Result<(), RuntimeError> {
    let suffix = type_suffix(dtype).ok_or_else(|| RuntimeError::Unsupported {
        device: device.name().to_owned(),
        op: "draw",
        dtype: dtype.name(),
    })?;
    if !at.is_multiple_of(16) {
        return Err(RuntimeError::Device { reason: format!("draws begin at a multiple of 16 bytes, not at {at}") });
    }
    let (kind, scale) = match draw.distribution {
        Distribution::Constant(value) => (0, value),
        Distribution::Uniform { bound } => (1, bound),
        Distribution::Normal { std } => (2, std),
    };
    let args = Args::new().ptr(at).u64((bytes / dtype.bytes()) as u64).u32(kind).f32(scale).u64(draw.key);
    let blocks = bytes.div_ceil(16).div_ceil(THREADS as usize) as u32;
    Ok(device.launch(MODULE, &format!("draw_{suffix}"), (blocks, 1, 1), THREADS, 0, args)?)
}
