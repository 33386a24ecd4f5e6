//! Adapters folded into the weights they stand beside, a piece of one tensor at a time: how much memory that takes
//! depends on the widest layer and the rank, not on how many layers there are.

mod base_error;
mod config;
mod fold;
mod shards;

use std::io::Write;
use std::path::{Path, PathBuf};

use plimsoll_files::{FolderFile, NewFolder, free_bytes};
use plimsoll_graph::WeightFormat;
use plimsoll_runtime::weights::{
    Checkpoint, StoredType, TensorInfo, WeightError, from_floats, is_float, safetensors_header, to_floats,
};
use serde_json::json;

use crate::{AdapterFolder, Model, TextFiles, TrainError};
pub use base_error::BaseError;
use config::{Files, files};
use fold::{Fold, LowRank};
pub use shards::SHARD_BYTES;
use shards::{Shard, shards};

/// What is to be merged. Nothing has been read but headers and configurations.
pub struct Merge {
    base: Checkpoint,
    adapter: Checkpoint,
    tensors: Vec<Tensor>,
    shards: Vec<Shard>,
    files: Files,
    /// The model, and the format of few bits that its weights had while the adapter was trained.
    trained_on: Option<(Model, WeightFormat)>,
    /// What merging takes beside the process, and what it writes.
    pub plan: MergePlan,
}

/// Known before anything is read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MergePlan {
    /// Memory beside the process itself.
    pub memory_bytes: u64,
    pub output_bytes: u64,
    /// Matrices that an adapter changes, and tensors that the adapter's folder has whole.
    pub folded: usize,
    pub replaced: usize,
    pub tensors: usize,
    pub shards: usize,
}

/// A tensor of the merged model.
struct Tensor {
    name: String,
    dtype: StoredType,
    shape: Vec<usize>,
    content: Content,
}

enum Content {
    /// As the base has it.
    Base(TensorInfo),
    Folded(Fold),
    /// Saved whole beside the adapters.
    Replaced(TensorInfo),
}

impl Tensor {
    fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8) as u64
    }
}

/// What PEFT puts before the names of the model it wraps.
const PREFIX: &str = "base_model.model.";
const SUFFIXES: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];

/// Bytes of weights that are in memory at one time.
const PIECE_BYTES: usize = 4 << 20;

impl Merge {
    /// Looks at a base model and an adapter, and pairs every tensor of the one with its part in the other. `beside`:
    /// files that travel, such as the tokenizer's.
    pub fn open(
        base: &Model,
        adapter: &AdapterFolder,
        beside: TextFiles,
        shard_bytes: u64,
    ) -> Result<Self, TrainError> {
        let folder = base.weights_folder().ok_or_else(|| TrainError::NoBaseWeights { model: base.name() })?;
        if let Some(format) = base.stored_format()? {
            return Err(TrainError::StoredBase { model: base.name(), format: format.name() });
        }
        let scale = adapter.lora.scale();
        let weights = Checkpoint::open(folder, "model")?;
        let adapters = Checkpoint::open(&adapter.path, "adapter_model")?;
        let files = files(base, adapter, &adapters, beside)?;
        let mut parts = Parts::of(adapter, &adapters)?;
        let mut tensors = Vec::new();
        let mut common = None;
        for (name, info) in weights.in_order() {
            if is_float(info.dtype) {
                common.get_or_insert(info.dtype);
            }
            // A head that gives scores stands in the place of the one that gives words.
            if files.is_scored && name == base.config.head.name {
                continue;
            }
            let module = name.strip_suffix(".weight");
            let content = match module.and_then(|module| parts.low_rank(module)) {
                Some((a, b)) => Content::Folded(Fold::new(&weights, name, info, &adapters, LowRank { a, b, scale })?),
                None => match parts.whole(name) {
                    Some(whole) if whole.shape != info.shape => {
                        let (expected, found) = (info.shape.clone(), whole.shape.clone());
                        let path = adapters.path_of(&whole).to_owned();
                        return Err(WeightError::Shape { path, name: name.to_owned(), expected, found }.into());
                    }
                    Some(whole) => Content::Replaced(whole),
                    None => Content::Base(info.clone()),
                },
            };
            tensors.push(Tensor { name: name.to_owned(), dtype: info.dtype, shape: info.shape.clone(), content });
        }
        let dtype = common.unwrap_or(StoredType::F32);
        for (name, info) in parts.new_ones() {
            tensors.push(Tensor { name, dtype, shape: info.shape.clone(), content: Content::Replaced(info) });
        }
        parts.check_used()?;
        let sizes: Vec<u64> = tensors.iter().map(Tensor::bytes).collect();
        let shards = shards(&sizes, shard_bytes);
        let mut plan = plan(&tensors, &shards, &files);
        let trained_on = adapter.base_format.map(|format| (base.clone(), format));
        if trained_on.is_some() {
            let largest = tensors.iter().map(|tensor| tensor.shape.iter().product()).max().unwrap_or(0);
            plan.memory_bytes = plan.memory_bytes.max(base_error::memory_bytes(largest));
        }
        Ok(Self { base: weights, adapter: adapters, tensors, shards, files, trained_on, plan })
    }

    /// How far the base is from what the adapter was trained beside, where that was in few bits.
    pub fn base_error(&self) -> Result<Option<BaseError>, TrainError> {
        self.trained_on.as_ref().map(|(model, format)| base_error::base_error(model, &self.base, *format)).transpose()
    }

    /// Writes the merged model into a folder that is not there yet or empty. `tick` gets the bytes written and all.
    pub fn write(&self, folder: &Path, tick: &mut dyn FnMut(u64, u64)) -> Result<(), TrainError> {
        let io = |e| TrainError::io(folder, e);
        if folder.exists() && std::fs::read_dir(folder).map_err(io)?.next().is_some() {
            return Err(TrainError::Occupied { path: folder.to_owned() });
        }
        let needed = self.plan.output_bytes;
        if let Some(free) = free_bytes(folder).filter(|free| *free < needed) {
            return Err(TrainError::NoSpace { path: folder.to_owned(), needed, free });
        }
        if let Some(above) = folder.parent() {
            std::fs::create_dir_all(above).map_err(io)?;
        }
        let new = NewFolder::create(folder).map_err(io)?;
        let mut done = 0;
        for (index, shard) in self.shards.iter().enumerate() {
            let name = self.shard_name(index);
            self.write_shard(&new, folder, &name, shard, &mut |bytes| {
                done += bytes;
                tick(done, needed);
            })?;
        }
        if self.shards.len() > 1 {
            let bytes = serde_json::to_vec_pretty(&self.index()).expect("plain data");
            new.write("model.safetensors.index.json", &bytes).map_err(io)?;
        }
        for (name, bytes) in &self.files.small {
            new.write(name, bytes).map_err(io)?;
        }
        new.commit(folder).map_err(io)
    }

    fn shard_name(&self, index: usize) -> String {
        match self.shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        }
    }

    fn index(&self) -> serde_json::Value {
        let named = |(index, shard): (usize, &Shard)| {
            let file = self.shard_name(index);
            self.tensors[shard.clone()].iter().map(move |tensor| (tensor.name.clone(), json!(file))).collect::<Vec<_>>()
        };
        let map: serde_json::Map<_, _> = self.shards.iter().enumerate().flat_map(named).collect();
        let total: u64 = self.tensors.iter().map(Tensor::bytes).sum();
        json!({"metadata": {"total_size": total}, "weight_map": map})
    }

    fn write_shard(
        &self,
        new: &NewFolder,
        folder: &Path,
        name: &str,
        shard: &Shard,
        written: &mut dyn FnMut(u64),
    ) -> Result<(), TrainError> {
        let path = folder.join(name);
        let io = |e| TrainError::io(&path, e);
        let tensors = &self.tensors[shard.clone()];
        let entries = tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice(), t.bytes()));
        let header = safetensors_header(entries);
        let mut file = new.file(name).map_err(io)?;
        file.write_all(&(header.len() as u64).to_le_bytes()).map_err(io)?;
        file.write_all(header.as_bytes()).map_err(io)?;
        for tensor in tensors {
            self.write_tensor(tensor, &mut Out { file: &mut file, path: &path, written })?;
        }
        file.finish().map(|_| ()).map_err(io)
    }

    fn write_tensor(&self, tensor: &Tensor, out: &mut Out<'_>) -> Result<(), TrainError> {
        match &tensor.content {
            Content::Base(info) => copy(&self.base, info, tensor.dtype, out),
            Content::Replaced(info) => copy(&self.adapter, info, tensor.dtype, out),
            Content::Folded(fold) => fold.write(&self.base, &self.adapter, out),
        }
    }
}

/// Where the bytes of a file go.
struct Out<'a> {
    file: &'a mut FolderFile,
    path: &'a Path,
    written: &'a mut dyn FnMut(u64),
}

impl Out<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), TrainError> {
        self.file.write_all(bytes).map_err(|e| TrainError::io(self.path, e))?;
        (self.written)(bytes.len() as u64);
        Ok(())
    }
}

/// Copies a tensor; where another type is wanted, through float32.
fn copy(from: &Checkpoint, info: &TensorInfo, dtype: StoredType, out: &mut Out<'_>) -> Result<(), TrainError> {
    let mut raw = vec![0; PIECE_BYTES.min(info.bytes() as usize)];
    let stored = info.dtype.bitsize() / 8;
    let (mut numbers, mut converted) = (Vec::new(), Vec::new());
    for done in (0..info.bytes()).step_by(PIECE_BYTES) {
        let raw = &mut raw[..PIECE_BYTES.min((info.bytes() - done) as usize)];
        from.read_stored(info, done, raw)?;
        if dtype == info.dtype {
            out.put(raw)?;
            continue;
        }
        numbers.resize(raw.len() / stored, 0.0);
        converted.resize(numbers.len() * dtype.bitsize() / 8, 0);
        to_floats(raw, info.dtype, &mut numbers);
        from_floats(&numbers, dtype, &mut converted);
        out.put(&converted)?;
    }
    Ok(())
}

fn plan(tensors: &[Tensor], shards: &[Shard], files: &Files) -> MergePlan {
    let of = |is: fn(&Content) -> bool| tensors.iter().filter(|tensor| is(&tensor.content)).count();
    let widest = tensors.iter().map(|tensor| match &tensor.content {
        Content::Folded(fold) => fold.memory_bytes(),
        // A piece as it is stored, as numbers and in the wanted type.
        Content::Base(_) | Content::Replaced(_) => 4 * PIECE_BYTES as u64,
    });
    let small: u64 = files.small.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let weights: u64 = tensors.iter().map(Tensor::bytes).sum();
    /// Of names, shapes and places, in memory and in headers.
    const ENTRY_BYTES: u64 = 2 << 10;
    let entries = ENTRY_BYTES * tensors.len() as u64;
    MergePlan {
        memory_bytes: widest.max().unwrap_or(0) + small + entries,
        output_bytes: weights + small + entries,
        folded: of(|content| matches!(content, Content::Folded(_))),
        replaced: of(|content| matches!(content, Content::Replaced(_))),
        tensors: tensors.len(),
        shards: shards.len(),
    }
}

/// The tensors of an adapter's file, each to be used once.
struct Parts {
    path: PathBuf,
    /// By name in the base model, without what PEFT puts before it.
    left: std::collections::BTreeMap<String, TensorInfo>,
}

impl Parts {
    fn of(folder: &AdapterFolder, adapters: &Checkpoint) -> Result<Self, TrainError> {
        let path = folder.path.clone();
        let mut left = std::collections::BTreeMap::new();
        for (name, info) in adapters.in_order() {
            let own = name.strip_prefix(PREFIX).filter(|_| is_float(info.dtype));
            let own = own.ok_or_else(|| TrainError::AdapterTensor { path: path.clone(), name: name.to_owned() })?;
            left.insert(own.to_owned(), info.clone());
        }
        Ok(Self { path, left })
    }

    /// Both sides of a module's adapter.
    fn low_rank(&mut self, module: &str) -> Option<(TensorInfo, TensorInfo)> {
        let [a, b] = SUFFIXES.map(|suffix| format!("{module}{suffix}"));
        if !(self.left.contains_key(&a) && self.left.contains_key(&b)) {
            return None;
        }
        Some((self.left.remove(&a)?, self.left.remove(&b)?))
    }

    fn whole(&mut self, name: &str) -> Option<TensorInfo> {
        self.left.remove(name)
    }

    /// Heads that the base model does not have.
    fn new_ones(&mut self) -> Vec<(String, TensorInfo)> {
        let is_low_rank = |name: &str| name.contains(".lora_");
        let names: Vec<String> = self.left.keys().filter(|name| !is_low_rank(name)).cloned().collect();
        names.into_iter().filter_map(|name| self.left.remove_entry(&name)).collect()
    }

    /// What has no place in the base model would be lost.
    fn check_used(&self) -> Result<(), TrainError> {
        match self.left.keys().next() {
            Some(name) => Err(TrainError::AdapterTensor { path: self.path.clone(), name: format!("{PREFIX}{name}") }),
            None => Ok(()),
        }
    }
}
