//! Writing: the header first, then every tensor straight from the arena.

use std::io::Write;
use std::path::Path;

use plimsoll_graph::{DType, Shape};
use plimsoll_plan::Region;
use safetensors::tensor::Dtype;
use serde_json::{Map, json};

use super::{CodedPlace, PIECE_BYTES, WeightError, from_floats};
use crate::RuntimeError;

/// A tensor to be written, and where it lies now.
#[derive(Debug, Clone)]
pub struct OutTensor {
    pub name: String,
    pub shape: Shape,
    pub dtype: DType,
    pub region: Region,
    /// Where it lies in a weight stored in few bits, of which the file gets the numbers.
    pub coded: Option<CodedPlace>,
}

impl OutTensor {
    /// What it takes in a file.
    fn bytes(&self) -> usize {
        if self.coded.is_some() { self.shape.elements() * self.dtype.bytes() } else { self.region.bytes }
    }

    /// The part of its bytes that begins `done` behind the beginning.
    fn read(&self, done: usize, piece: &mut [u8], read: &ReadRegion<'_>) -> Result<(), RuntimeError> {
        let Some(place) = &self.coded else {
            return read(Region { offset: self.region.offset + done, bytes: piece.len(), ..self.region }, piece);
        };
        let mut numbers = vec![0.0; piece.len() / self.dtype.bytes()];
        place.decode(done / self.dtype.bytes(), &mut numbers, read)?;
        from_floats(&numbers, stored_as(self.dtype), piece);
        Ok(())
    }
}

/// Copies the bytes of a region, from the arena or from wherever they were put aside.
pub type ReadRegion<'a> = dyn Fn(Region, &mut [u8]) -> Result<(), RuntimeError> + 'a;

/// Writes a safetensors file, a piece at a time. `path` is what it is called in errors.
pub fn write_safetensors(
    path: &Path,
    out: &mut dyn Write,
    tensors: &[OutTensor],
    read: &ReadRegion<'_>,
) -> Result<(), WeightError> {
    let io = |e| WeightError::write(path, e);
    let header = header(tensors);
    out.write_all(&[&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()).map_err(io)?;
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    for tensor in tensors {
        let mut done = 0;
        while done < tensor.bytes() {
            // Small tensors go out together.
            let bytes = (PIECE_BYTES - piece.len()).min(tensor.bytes() - done);
            // Whole elements of what is decoded: the piece may have begun with the bytes of a smaller type.
            let bytes =
                if tensor.coded.is_some() { bytes / tensor.dtype.bytes() * tensor.dtype.bytes() } else { bytes };
            let held = piece.len();
            piece.resize(held + bytes, 0);
            tensor.read(done, &mut piece[held..], read)?;
            done += bytes;
            if PIECE_BYTES - piece.len() < DType::F64.bytes() {
                out.write_all(&piece).map_err(io)?;
                piece.clear();
            }
        }
    }
    out.write_all(&piece).map_err(io)
}

/// Bytes of the file that [`write_safetensors`] makes.
pub fn safetensors_bytes(tensors: &[OutTensor]) -> u64 {
    let data: usize = tensors.iter().map(OutTensor::bytes).sum();
    (8 + header(tensors).len() + data) as u64
}

/// What the format calls a type.
pub(super) fn stored_as(dtype: DType) -> Dtype {
    match dtype {
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::F64 => Dtype::F64,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
        DType::U8 => Dtype::U8,
        DType::E4m3 => Dtype::F8_E4M3,
        DType::F32 => Dtype::F32,
    }
}

fn header(tensors: &[OutTensor]) -> String {
    safetensors_header(
        tensors
            .iter()
            .map(|tensor| (tensor.name.as_str(), stored_as(tensor.dtype), tensor.shape.dims(), tensor.bytes() as u64)),
    )
}

/// The header of a file with tensors of this name, type, shape and size, padded with spaces so that the data begins at a
/// multiple of eight bytes. Its length, in eight bytes, stands before it.
pub fn safetensors_header<'a>(tensors: impl Iterator<Item = (&'a str, Dtype, &'a [usize], u64)>) -> String {
    let mut entries = Map::new();
    entries.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut offset = 0;
    for (name, dtype, shape, bytes) in tensors {
        let end = offset + bytes;
        entries.insert(name.to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}));
        offset = end;
    }
    let mut text = serde_json::Value::Object(entries).to_string();
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    text
}
