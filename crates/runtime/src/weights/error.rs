use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::RuntimeError;

/// What can be wrong with a model's files.
#[derive(Debug, Error)]
pub enum WeightError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "no weights in {}: it has neither {stem}.safetensors nor {stem}.safetensors.index.json",
        path.display()
    )]
    Missing { path: PathBuf, stem: String },
    /// Weights there are, but in files that only Python can read.
    #[error(
        "no safetensors files in {}: {file} cannot be read, because reading it may run code",
        path.display()
    )]
    OtherFormat { path: PathBuf, file: String },
    /// A repository was cloned without its large files.
    #[error("{} is a Git LFS pointer, not the file itself", path.display())]
    Pointer { path: PathBuf },
    #[error(
        "{}: `{name}` holds NaN or infinity",
        path.display()
    )]
    NotFinite { path: PathBuf, name: String },
    #[error("{}: not a safetensors file: {reason}", path.display())]
    Format { path: PathBuf, reason: String },
    #[error(
        "{} is truncated: its header promises {expected_bytes} bytes, the file has {found_bytes}",
        path.display()
    )]
    Truncated { path: PathBuf, expected_bytes: u64, found_bytes: u64 },
    #[error(
        "the weights in {} have no tensor `{name}`",
        path.display()
    )]
    NoTensor { path: PathBuf, name: String },
    #[error(
        "{}: `{name}` has shape {found:?}, the model's configuration asks for {expected:?}",
        path.display()
    )]
    Shape { path: PathBuf, name: String, expected: Vec<usize>, found: Vec<usize> },
    #[error(
        "{}: `{name}` is stored as {dtype}, which cannot be read",
        path.display()
    )]
    DType { path: PathBuf, name: String, dtype: String },
    /// In few bits that are no format of ours, or not that of the run.
    #[error(
        "{}: `{name}` is stored {stored}, which cannot be loaded",
        path.display()
    )]
    Stored { path: PathBuf, name: String, stored: String, hint: &'static str },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl WeightError {
    /// What to do about it.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Read { .. } => "check the file and its permissions",
            Self::Missing { .. } => "download the weights into the folder",
            Self::OtherFormat { .. } => {
                "convert the weights with transformers: \
                 AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
            }
            Self::Pointer { .. } => "run `git lfs pull` in its folder, or download the file again",
            Self::NotFinite { .. } => {
                "the file is damaged, or the training that wrote it failed; download it again or use an earlier one"
            }
            Self::Format { .. } | Self::Truncated { .. } => "download or copy it again",
            Self::NoTensor { .. } | Self::Shape { .. } => {
                "config.json and the weights must belong to one model; download both again"
            }
            Self::DType { .. } => "convert it to F32, F16 or BF16",
            Self::Stored { hint, .. } => hint,
            Self::Write { .. } | Self::Runtime(_) => return Vec::new(),
        };
        vec![hint.to_owned()]
    }

    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        WeightError::Read { path: path.to_owned(), source }
    }

    pub(crate) fn write(path: &Path, source: io::Error) -> Self {
        WeightError::Write { path: path.to_owned(), source }
    }

    pub(crate) fn format(path: &Path, reason: impl ToString) -> Self {
        WeightError::Format { path: path.to_owned(), reason: reason.to_string() }
    }
}
