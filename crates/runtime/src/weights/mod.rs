//! Tensors between safetensors files and the arena, a piece at a time: nothing is ever held twice.

mod coded;
mod error;
mod place;
mod read;
mod write;

pub use error::WeightError;
pub use place::{CodedPlace, encoding_bytes};
pub use read::{Checkpoint, TensorInfo, from_floats, is_float, is_pointer, to_floats};
pub use safetensors::tensor::Dtype as StoredType;
pub use write::{OutTensor, ReadRegion, safetensors_bytes, safetensors_header, write_safetensors};

/// Bytes that pass through the host at one time: part of what a plan gives the process itself.
const PIECE_BYTES: usize = 1 << 20;
