//! What a run tells whoever watches it. Each event is also a line of `metrics.jsonl`.

use std::fmt;
use std::path::PathBuf;

use plimsoll_runtime::BadNumber;
use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::checkpoint::{Change, Damaged};
use crate::memory::MemoryWarning;
use crate::{Metrics, TrainError};

/// One update.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct StepEvent {
    pub step: u64,
    pub loss: f64,
    pub lr: f64,
    pub grad_norm: f64,
    /// Tokens of this update.
    pub tokens: u64,
    pub sequences: u64,
    pub tokens_per_s: f64,
    pub step_ms: f64,
    pub data_wait_ms: f64,
    /// Of all micro-batches, without the waiting for them; with the optimizer where that works inside the backward pass.
    pub forward_backward_ms: f64,
    /// Of the optimizer, clipping included.
    pub update_ms: f64,
    /// The share of the micro-batches' token slots that held a token.
    pub fill_rate: f64,
    pub gpu_used_bytes: u64,
    pub host_rss_bytes: u64,
    /// What others could still take of the host's memory, what of this process is in swap space, and how often it waited for
    /// a page from a disk so far; as last looked at, about once a second.
    pub host_available_bytes: u64,
    pub host_swapped_bytes: u64,
    pub major_faults: u64,
    /// What the task reports of the update, by name.
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// One evaluation.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct EvalEvent {
    pub loss: f64,
    pub tokens: u64,
    pub sequences: u64,
    pub ms: f64,
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Rows that `bleu` was found over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bleu_rows: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// So many micro-batches of an update are done. Not in the metrics.
    MicroBatch {
        step: u64,
        done: u64,
        total: u64,
    },
    Step(StepEvent),
    Eval {
        step: u64,
        eval: EvalEvent,
    },
    /// Weights were written to this folder.
    Saved {
        step: u64,
        folder: PathBuf,
    },
    /// The run goes on from a checkpoint.
    Resumed(Resumed),
    /// An update was passed over; it is made of the next data instead.
    Skipped {
        step: u64,
        skip: Skip,
    },
    /// Something failed without which the run goes on.
    Warning {
        step: u64,
        warning: Warning,
    },
}

/// Where a run goes on.
#[derive(Debug, Clone, PartialEq)]
pub struct Resumed {
    /// The last update that is done.
    pub step: u64,
    pub folder: PathBuf,
    /// What is not as it was.
    pub changes: Vec<Change>,
    /// Newer checkpoints that could not be used.
    pub damaged: Vec<Damaged>,
}

/// Why an update was not applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bad {
    /// The loss is not finite.
    Loss { loss: f64, origin: Option<BadNumber> },
    /// The gradient's norm is not finite.
    Gradient { norm: f64, origin: Option<BadNumber> },
    /// The loss is far above the usual one.
    Spike { loss: f64, usual: f64 },
}

impl Bad {
    /// The error of a run that ends with it. `touched`: weights were updated before it was seen.
    pub(crate) fn stops(self, step: u64, touched: bool) -> TrainError {
        match self {
            bad if touched => TrainError::HalfApplied { step, bad },
            Self::Loss { loss, origin } => TrainError::NotANumber { step, loss, origin },
            Self::Gradient { norm, origin } => TrainError::BadGradient { step, norm, origin },
            Self::Spike { loss, usual } => TrainError::Spike { step, loss, usual },
        }
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self {
            Self::Loss { loss, origin } => {
                write!(f, "the loss is {loss}")?;
                origin
            }
            Self::Gradient { norm, origin } => {
                write!(f, "the gradient's norm is {norm}")?;
                origin
            }
            Self::Spike { loss, usual } => {
                return write!(f, "the loss is {loss:.4}, {:.1} times the usual {usual:.4}", loss / usual);
            }
        };
        match origin {
            Some(bad) => write!(f, " (the first value that is not finite comes from {bad})"),
            None => Ok(()),
        }
    }
}

/// An update that was passed over.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Skip {
    pub bad: Bad,
    /// Updates passed over so far, this one included, and how many may be.
    pub count: u64,
    pub limit: u64,
}

impl Serialize for Skip {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_struct("Skip", 2)?;
        map.serialize_field("reason", &self.bad.to_string())?;
        map.serialize_field("count", &self.count)?;
        map.end()
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bad, count, limit } = self;
        write!(f, "{bad}; this data is passed over ({count} of at most {limit})")
    }
}

/// What failed or is in the way, in words.
#[derive(Debug, Clone, PartialEq)]
pub enum Warning {
    /// Lines of the metrics file are kept until it can be written again.
    Metrics { reason: String },
    /// A checkpoint could not be written; it is tried again soon.
    Checkpoint { reason: String },
    /// `state.json` does not say how the run ended.
    State { reason: String },
    /// Fewer checkpoints than asked for will fit.
    Space { needed: u64, free: u64 },
    /// The machine is short of memory.
    Memory(MemoryWarning),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        match self {
            Self::Metrics { reason } => write!(f, "{reason}; training goes on, and the lines are written later"),
            Self::Checkpoint { reason } => write!(f, "{reason}; training goes on, and saving is tried again"),
            Self::State { reason } => f.write_str(reason),
            Self::Memory(warning) => warning.fmt(f),
            Self::Space { needed, free } => {
                let (needed, free) = (needed.div_ceil(MIB), free / MIB);
                write!(f, "all checkpoints and the final weights take {needed} MiB, of which {free} MiB are free")
            }
        }
    }
}
