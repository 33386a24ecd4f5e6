//! Writing: the header first, then every tensor straight from the arena.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use plimsoll_graph::{DType, Shape};
use plimsoll_plan::Region;
use serde_json::{Map, json};

use super::{PIECE_BYTES, WeightError};
use crate::Backend;

/// A tensor to be written, and where it lies now.
#[derive(Debug, Clone)]
pub struct OutTensor {
    pub name: String,
    pub shape: Shape,
    pub dtype: DType,
    pub region: Region,
}

/// Writes a safetensors file beside its final place and moves it there once it is complete and on disk.
pub fn write_safetensors(path: &Path, tensors: &[OutTensor], backend: &dyn Backend) -> Result<(), WeightError> {
    let partial = path.with_extension("safetensors.partial");
    let result = write_all(&partial, tensors, backend)
        .and_then(|()| std::fs::rename(&partial, path).map_err(|e| WeightError::write(path, e)));
    if result.is_err() {
        // Leave nothing half-written behind; the first error is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    result
}

fn write_all(path: &Path, tensors: &[OutTensor], backend: &dyn Backend) -> Result<(), WeightError> {
    let io = |e| WeightError::write(path, e);
    let file = File::create(path).map_err(io)?;
    let mut out = BufWriter::new(&file);
    let header = header(tensors);
    out.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
    out.write_all(header.as_bytes()).map_err(io)?;
    let mut piece = vec![0; PIECE_BYTES];
    for tensor in tensors {
        let mut done = 0;
        while done < tensor.region.bytes {
            let bytes = PIECE_BYTES.min(tensor.region.bytes - done);
            let region = Region { offset: tensor.region.offset + done, bytes, ..tensor.region };
            backend.read(region, &mut piece[..bytes])?;
            out.write_all(&piece[..bytes]).map_err(io)?;
            done += bytes;
        }
    }
    out.flush().map_err(io)?;
    drop(out);
    file.sync_all().map_err(io)
}

/// Padded with spaces so that the data begins at a multiple of eight bytes.
fn header(tensors: &[OutTensor]) -> String {
    let mut entries = Map::new();
    entries.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + tensor.region.bytes;
        let dtype = match tensor.dtype {
            DType::BF16 => "BF16",
            DType::F16 => "F16",
            DType::F64 => "F64",
            DType::I32 => "I32",
            DType::U32 => "U32",
            DType::U8 => "U8",
            DType::F32 => "F32",
        };
        let entry = json!({"dtype": dtype, "shape": tensor.shape.dims(), "data_offsets": [offset, end]});
        entries.insert(tensor.name.clone(), entry);
        offset = end;
    }
    let mut text = serde_json::Value::Object(entries).to_string();
    while !text.len().is_multiple_of(8) {
        text.push(' ');
    }
    text
}
