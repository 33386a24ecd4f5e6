//! Tensors between safetensors files and the arena, a piece at a time: nothing is ever held twice.

mod error;
mod read;
mod write;

pub use error::WeightError;
pub use read::{Checkpoint, TensorInfo};
pub use write::{OutTensor, safetensors_bytes, write_safetensors};

/// Bytes that pass through the host at one time: part of what a plan gives the process itself.
const PIECE_BYTES: usize = 1 << 20;
