//! Where a value came from.

use std::fmt;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A file, or a text built into the program; line and column count from 1.
    File { name: Arc<str>, line: u64, column: u64 },
    /// An environment variable.
    Environment { variable: String },
    /// `--set KEY=VALUE`.
    Set { key: String },
    /// A flag of its own, such as `--gpu`.
    Flag { name: &'static str },
}

impl Origin {
    /// The place an error points at, as precisely as it is known.
    pub fn place(&self) -> String {
        match self {
            Self::File { name, line, column } => format!("{name}:{line}:{column}"),
            Self::Environment { variable } => variable.clone(),
            Self::Set { key } => format!("--set {key}"),
            Self::Default | Self::Flag { .. } => self.to_string(),
        }
    }
}

/// The short form that stands behind a value in the resolved file.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line, .. } => write!(f, "{name}:{line}"),
            Self::Environment { variable } => write!(f, "environment {variable}"),
            Self::Set { .. } => f.write_str("--set"),
            Self::Flag { name } => f.write_str(name),
        }
    }
}
