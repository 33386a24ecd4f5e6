use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be shown.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} holds no run", path = path.display())]
    NoRun { path: PathBuf },
}

impl ObserveError {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}
