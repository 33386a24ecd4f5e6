//! Models as one file for llama.cpp, with their adapters added. Some rows of a tensor are in memory at a time, beside the
//! tokenizer and the first factor of one adapter.

mod cutting;
mod encode;
mod folded;
mod format;
mod target;
mod tensors;
mod vocabulary;

use std::io::Write;
use std::path::Path;

use plimsoll_files::{NewFile, free_bytes};
use plimsoll_graph::{DType, Shape};
use plimsoll_models::{RopeScaling, frequency_divisors};
use plimsoll_runtime::weights::Checkpoint;

use crate::{AdapterFolder, Model, TrainError};
use encode::encode;
use folded::Folded;
pub use format::GgufType;
use format::{BLOCK, Entry, Item, Keys, header, padded};
use target::Target;
use tensors::{Change, Tensor, tensors};

/// Numbers that are read and converted at a time, but for heads that are larger.
const PIECE_NUMBERS: usize = 1 << 20;

/// What was written.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufReport {
    pub bytes: u64,
    pub tensors: usize,
    /// Of matrices; vectors are always in float32.
    pub stored: GgufType,
    /// In what llama.cpp differs from here.
    pub notes: Vec<String>,
}

/// Writes a model's weights and its tokenizer. Without a type, matrices keep the one they are stored in.
pub fn export_gguf(
    model: &Model,
    adapter: Option<&AdapterFolder>,
    tokenizer: &Path,
    stored: Option<GgufType>,
    path: &Path,
) -> Result<GgufReport, TrainError> {
    let target = Target::of(&model.config).map_err(|reason| TrainError::Gguf { reason })?;
    let folder = model.weights_folder().ok_or_else(|| {
        let reason = format!("{} has no weights", model.name());
        TrainError::Gguf { reason }
    })?;
    if let Some(format) = model.stored_format()? {
        return Err(TrainError::StoredBase { model: model.name(), format: format.name() });
    }
    let files = Checkpoint::open(folder, "model")?;
    let stored = stored.unwrap_or_else(|| as_in_files(&files, model.config.embedding.name));
    let mut keys = Keys::default();
    describe(model, target, stored, &mut keys);
    let mut notes = vocabulary::describe(tokenizer, model.config.vocab_size, &mut keys)?;
    notes.extend(target.window_left_out(&model.config).map(|window| {
        format!(
            "llama.cpp does not apply the attention window of {window} tokens: longer texts get other answers there"
        )
    }));
    let file = Plan::new(model, adapter, target, stored, &files)?;
    let (bytes, count) = file.write(&keys, path)?;
    Ok(GgufReport { bytes, tensors: count, stored, notes })
}

fn as_in_files(files: &Checkpoint, name: &str) -> GgufType {
    match files.dtype(name) {
        Some(DType::BF16) => GgufType::BF16,
        Some(DType::F16) => GgufType::F16,
        _ => GgufType::F32,
    }
}

fn describe(model: &Model, target: Target, stored: GgufType, keys: &mut Keys) {
    let name = model.name();
    let last = Path::new(&name).file_name().and_then(|name| name.to_str()).unwrap_or(&name);
    keys.put("general.architecture", Item::Text(target.name));
    keys.put("general.type", Item::Text("model"));
    keys.put("general.name", Item::Text(last));
    keys.put("general.file_type", Item::Count(stored.file_code() as usize));
    if stored == GgufType::Q8_0 {
        keys.put("general.quantization_version", Item::Count(2));
    }
    target.describe(&model.config, keys);
}

/// The tensors of a file, in order.
struct Plan<'a> {
    files: &'a Checkpoint,
    adapter: Option<Folded>,
    tensors: Vec<(Tensor, GgufType)>,
    /// What rotary frequencies are divided by, where llama.cpp reads that from the file.
    divisors: Option<Vec<f32>>,
}

/// What llama.cpp calls that.
const DIVISORS: &str = "rope_freqs.weight";

impl<'a> Plan<'a> {
    fn new(
        model: &Model,
        adapter: Option<&AdapterFolder>,
        target: Target,
        stored: GgufType,
        files: &'a Checkpoint,
    ) -> Result<Self, TrainError> {
        let tensors = tensors(&model.config, target.pairs);
        tensors.iter().try_for_each(|tensor| files.check(&tensor.source, &tensor.shape))?;
        let adapter = adapter.map(|adapter| Folded::open(adapter, &tensors)).transpose()?;
        let rotary = model.config.rotary.filter(|rotary| matches!(rotary.scaling, RopeScaling::Llama3 { .. }));
        let divisors = rotary.map(|rotary| frequency_divisors(&rotary));
        let with_type = |tensor: Tensor| {
            let stored = type_of(&tensor.shape, stored);
            (tensor, stored)
        };
        Ok(Self { files, adapter, tensors: tensors.into_iter().map(with_type).collect(), divisors })
    }

    /// Bytes and tensors written.
    fn write(&self, keys: &Keys, path: &Path) -> Result<(u64, usize), TrainError> {
        let io = |error| TrainError::io(path, error);
        let lengths = self.divisors.as_ref().map(|divisors| [divisors.len()]);
        let first = lengths.as_ref().map(|dims| Entry { name: DIVISORS, dims, stored: GgufType::F32 });
        let of_model = self.tensors.iter().map(|(tensor, stored)| Entry {
            name: &tensor.name,
            dims: tensor.shape.dims(),
            stored: *stored,
        });
        let entries: Vec<Entry<'_>> = first.into_iter().chain(of_model).collect();
        let header = header(keys, &entries);
        let bytes = header.len() as u64 + entries.iter().map(|entry| padded(entry.bytes()) as u64).sum::<u64>();
        if let Some(free) = free_bytes(path).filter(|free| *free < bytes) {
            return Err(TrainError::NoSpaceFor { path: path.to_owned(), needed: bytes, free });
        }
        let mut file = NewFile::create(path).map_err(io)?;
        file.write_all(&header).map_err(io)?;
        if let Some(divisors) = &self.divisors {
            let mut out = Vec::new();
            encode(divisors, GgufType::F32, &mut out);
            out.resize(padded(out.len()), 0);
            file.write_all(&out).map_err(io)?;
        }
        for (tensor, stored) in &self.tensors {
            self.write_tensor(tensor, *stored, &mut file, path)?;
        }
        file.commit(path).map_err(io)?;
        Ok((bytes, entries.len()))
    }

    fn write_tensor(
        &self,
        tensor: &Tensor,
        stored: GgufType,
        file: &mut NewFile,
        path: &Path,
    ) -> Result<(), TrainError> {
        let io = |error| TrainError::io(path, error);
        let Tensor { source, shape, change, .. } = tensor;
        let adapter = self.adapter.as_ref().map(|adapter| adapter.addition(tensor)).transpose()?.flatten();
        let numbers = shape.elements();
        let columns = if shape.rank() == 1 { 1 } else { shape.cols() };
        let unit = if let Change::PairRows(rows) = change { rows * columns } else { columns };
        // Whole rows or heads, and of those one at least.
        let piece = (PIECE_NUMBERS / unit).max(1) * unit;
        let (mut held, mut changed, mut out) = (vec![0.0; piece.min(numbers)], Vec::new(), Vec::new());
        for first in (0..numbers).step_by(piece) {
            let held = &mut held[..piece.min(numbers - first)];
            self.files.read(source, shape, first, held)?;
            adapter.iter().try_for_each(|adapter| adapter.add(first / columns, held))?;
            match change {
                Change::None => {}
                Change::Add(offset) => held.iter_mut().for_each(|x| *x += offset),
                Change::PairRows(rows) => pair_rows(held, *rows, columns, &mut changed),
            }
            out.clear();
            if !encode(held, stored, &mut out) {
                let reason =
                    format!("`{source}` has numbers beyond the range of {}; choose bf16 or f32", stored.name());
                return Err(TrainError::Gguf { reason });
            }
            if first + piece >= numbers {
                let written = stored.bytes(first) + out.len();
                out.resize(out.len() + padded(written) - written, 0);
            }
            file.write_all(&out).map_err(io)?;
        }
        Ok(())
    }
}

/// Vectors are small and matter most; rows that do not divide into blocks cannot be stored in them.
fn type_of(shape: &Shape, stored: GgufType) -> GgufType {
    match stored {
        _ if shape.rank() == 1 => GgufType::F32,
        GgufType::Q8_0 if !shape.cols().is_multiple_of(BLOCK) => GgufType::F16,
        stored => stored,
    }
}

/// Row `i` of each half of a head becomes one of two neighbours.
fn pair_rows(numbers: &mut [f32], head_rows: usize, columns: usize, changed: &mut Vec<f32>) {
    for head in numbers.chunks_exact_mut(head_rows * columns) {
        changed.clear();
        let (upper, lower) = head.split_at(head.len() / 2);
        for (one, other) in upper.chunks_exact(columns).zip(lower.chunks_exact(columns)) {
            changed.extend_from_slice(one);
            changed.extend_from_slice(other);
        }
        head.copy_from_slice(changed);
    }
}
