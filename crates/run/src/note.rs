//! Remarks about a run: nothing is wrong, but whoever looks at the run should know.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_runtime::Counted;

use crate::base::Decided;
use crate::budgets::Limit;
use crate::data::Stored;
use crate::units::duration;
use crate::warning::Warning;

#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// No GPU could be used.
    OnCpu {
        reason: String,
    },
    /// GPU memory cannot be counted for this process alone.
    CountedFor(Counted),
    /// The GPU was measured, which takes some seconds.
    Measured {
        gpu: String,
        took: Duration,
        file: Option<PathBuf>,
    },
    NotMeasured {
        gpu: String,
        reason: String,
    },
    /// Less GPU memory is available than the budget.
    LessAvailable(Limit),
    Format(DetectedFormat),
    Stored(Stored),
    /// A plan without the memory of the data, which cannot be looked at here.
    DataNotCounted {
        reason: String,
    },
    /// What became of the rows of a dataset.
    Dataset(String),
    /// The folder holds an unfinished run without a checkpoint.
    BegunAgain(PathBuf),
    /// The model's files have no score head.
    NewHead,
    /// The model was found in the Hugging Face cache.
    Snapshot {
        id: String,
        folder: PathBuf,
    },
    /// What `base: auto` came to.
    Base(Decided),
    /// The base is stored as the adapter was trained on it.
    AdapterBase(&'static str),
    /// Values that adapters' gradients are made from are rounded.
    KeptInFp8,
    Warning(Warning),
}

/// What the rows of a source are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetectedFormat {
    pub source: String,
    /// The format, with the columns that hold it.
    pub format: String,
}

impl Note {
    /// Whether it should be seen even by those who do not want remarks.
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::Warning(_))
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OnCpu { reason } => write!(f, "running on the CPU: {reason}"),
            Self::CountedFor(counted) => write!(f, "GPU memory usage is counted for {}", counted_for(*counted)),
            Self::Measured { gpu, took, file } => {
                let saved = file.as_ref().map_or(String::new(), |file| format!(", saved to {}", file.display()));
                write!(f, "measured {gpu} in {}{saved}; --remeasure repeats it", duration(*took))
            }
            Self::NotMeasured { gpu, reason } => {
                write!(f, "could not measure {gpu} ({reason}); predicted times come from the built-in table")
            }
            Self::LessAvailable(limit) => write!(f, "{}; planning for the available memory", limit.text),
            Self::Format(DetectedFormat { source, format }) => write!(f, "{source}: detected format: {format}"),
            Self::Stored(stored) => stored.fmt(f),
            Self::DataNotCounted { reason } => write!(f, "the plan does not count the memory of the data: {reason}"),
            Self::Dataset(text) => f.write_str(text),
            Self::BegunAgain(folder) => {
                write!(f, "{} holds an unfinished run without a checkpoint; it begins again", folder.display())
            }
            Self::NewHead => {
                f.write_str("the model's files have no score head; a new one is initialised from the seed")
            }
            Self::Snapshot { id, folder } => write!(f, "model {id}: found in {}", folder.display()),
            Self::Base(decided) => decided.fmt(f),
            Self::AdapterBase(format) => {
                write!(f, "the adapter was trained on a base in {format}, which is used here; `base` sets another")
            }
            Self::KeptInFp8 => f.write_str(
                "what only adapters' gradients need is kept in e4m3: each number is off by a sixteenth of itself at most, or \
                 by a 458752nd of its row's largest; losses and all other gradients stay as they are",
            ),
            Self::Warning(warning) => warning.fmt(f),
        }
    }
}

fn counted_for(counted: Counted) -> &'static str {
    match counted {
        Counted::Process => "this process",
        Counted::SinceStart => "the whole GPU since the start: the driver does not report it by process",
        Counted::Device => "the whole GPU, other processes included: NVML is not available",
    }
}
