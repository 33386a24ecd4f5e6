use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::RuntimeError;

/// What can be wrong with a model's files.
#[derive(Debug, Error)]
pub enum WeightError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("no weights in {}: expected model.safetensors or model.safetensors.index.json", path.display())]
    Missing { path: PathBuf },
    #[error("{}: not a safetensors file: {reason}", path.display())]
    Format { path: PathBuf, reason: String },
    #[error("{} is truncated: its header promises {expected_bytes} bytes, the file has {found_bytes}; download or copy it again", path.display())]
    Truncated { path: PathBuf, expected_bytes: u64, found_bytes: u64 },
    #[error("{} has no tensor `{name}`", path.display())]
    NoTensor { path: PathBuf, name: String },
    #[error("{}: `{name}` has shape {found:?}, the model's configuration asks for {expected:?}", path.display())]
    Shape { path: PathBuf, name: String, expected: Vec<usize>, found: Vec<usize> },
    #[error("{}: `{name}` is stored as {dtype}, which cannot be read; convert it to F32, F16 or BF16", path.display())]
    DType { path: PathBuf, name: String, dtype: String },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl WeightError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        WeightError::Io { path: path.to_owned(), source }
    }

    pub(crate) fn format(path: &Path, reason: impl ToString) -> Self {
        WeightError::Format { path: path.to_owned(), reason: reason.to_string() }
    }
}
