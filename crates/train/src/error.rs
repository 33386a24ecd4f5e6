use std::io;
use std::path::{Path, PathBuf};

use plimsoll_data::DataError;
use plimsoll_models::ModelError;
use plimsoll_plan::PlanError;
use plimsoll_runtime::RuntimeError;
use plimsoll_runtime::weights::WeightError;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum TrainError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Weights(#[from] WeightError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// Something of the run folder could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Neither a folder nor a preset.
    #[error("model `{name}` is neither a folder here nor a preset\nhint: presets are {presets}")]
    NoModel { name: String, presets: String },
    /// A model given by a shape that cannot be built.
    #[error("the model cannot be built: {0}")]
    Shape(String),
    /// A model folder whose `config.json` cannot be used.
    #[error("{}: {reason}", path.display())]
    ModelConfig { path: PathBuf, reason: String },
    /// A PEFT folder whose `adapter_config.json` cannot be used.
    #[error("{}: {reason}", path.display())]
    AdapterConfig { path: PathBuf, reason: String },
    #[error("step {step}: the loss is {loss}, not a number; the weights of step {} are untouched", step - 1)]
    NotANumber { step: u64, loss: f64 },
    #[error("step {step}: the gradient's norm is {norm}; the weights of step {} are untouched", step - 1)]
    BadGradient { step: u64, norm: f64 },
    #[error(
        "the tokenizer has {tokenizer} tokens, the model's vocabulary only {model}\nhint: use the tokenizer that came with the model, or set data.tokenizer to its folder"
    )]
    Vocabulary { tokenizer: usize, model: usize },
    /// Others take or give memory all the time.
    #[error("the GPU's memory does not settle: {times} plans in a row took more than the driver had said")]
    Unsteady { times: usize },
    #[error("a logit at position {position} is not a number: the weights are damaged, or too large for the precision")]
    LogitsNotANumber { position: usize },
    #[error("a prompt has {tokens} tokens, more than the {longest} that were planned for")]
    LongPrompt { tokens: usize, longest: usize },
    #[error("a model for this task makes no text")]
    NoText,
}

impl TrainError {
    /// Whether an update was stopped before it touched weights and states.
    pub(crate) fn leaves_weights(&self) -> bool {
        matches!(self, TrainError::NotANumber { .. } | TrainError::BadGradient { .. })
    }

    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        TrainError::Io { path: path.to_owned(), source }
    }
}
