use std::io;
use std::path::{Path, PathBuf};

use plimsoll_data::DataError;
use plimsoll_models::ModelError;
use plimsoll_plan::PlanError;
use plimsoll_runtime::weights::WeightError;
use plimsoll_runtime::{BadNumber, RuntimeError};
use thiserror::Error;

use crate::checkpoint::{BaseChange, Change, Damaged};
use crate::event::Bad;
use crate::memory::Overgrowth;

const FOLDER_HOLDS: &str =
    "a model's folder holds config.json, model.safetensors (or shards) and tokenizer.json, as Hugging Face writes them";

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
    /// Something of a model or an adapter could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// Neither a folder nor a preset.
    #[error("model `{name}` is neither a folder here nor a preset")]
    NoModel { name: String, presets: String },
    /// A name as the Hugging Face hub has them, of nothing that is here.
    #[error("model `{id}` is neither a folder here nor in the Hugging Face cache ({})", cache.display())]
    NotInCache { id: String, cache: PathBuf, presets: String },
    /// A folder in the place of a model's that holds only what was trained on top of one.
    #[error("{} holds a PEFT adapter, not a model", path.display())]
    Adapter { path: PathBuf, base: Option<String> },
    /// A model given by a shape that cannot be built.
    #[error("the model cannot be built: {}", reason(.0))]
    Shape(ModelError),
    /// A model folder whose `config.json` cannot be used.
    #[error("{}: {}", path.display(), reason(source))]
    ModelConfig { path: PathBuf, source: ModelError },
    /// A folder without one.
    #[error("{}: {source}", path.display())]
    NoModelConfig { path: PathBuf, source: io::Error },
    /// A PEFT folder whose `adapter_config.json` cannot be used.
    #[error("{}: {reason}", path.display())]
    AdapterConfig { path: PathBuf, reason: String },
    /// An adapter that is not of the kind that is trained or used.
    #[error("the adapter in {} is not of this run: {reason}", path.display())]
    AdapterDiffers { path: PathBuf, reason: String },
    #[error("step {step}: {}; the weights of step {} are untouched", Bad::Loss { loss: *loss, origin: *origin }, step - 1)]
    NotANumber { step: u64, loss: f64, origin: Option<BadNumber> },
    #[error("step {step}: {}; the weights of step {} are untouched", Bad::Gradient { norm: *norm, origin: *origin }, step - 1)]
    BadGradient { step: u64, norm: f64, origin: Option<BadNumber> },
    #[error("step {step}: {}; the weights of step {} are untouched", Bad::Spike { loss: *loss, usual: *usual }, step - 1)]
    Spike { step: u64, loss: f64, usual: f64 },
    /// What was found before the first update cannot be found again.
    #[error(
        "{}: {reason}; the run cannot go on without how likely the model found each answer before training",
        path.display()
    )]
    References { path: PathBuf, reason: String },
    #[error("a sequence is none of those that the model was asked about before training: the data has changed since")]
    NoReference,
    #[error("step {step}: {bad}; its backward pass had updated weights, so the last good state is the last checkpoint")]
    HalfApplied { step: u64, bad: Bad },
    /// A tensor of an adapter that has no place in the base model.
    #[error("{}: `{name}` has no place in the base model", path.display())]
    AdapterTensor { path: PathBuf, name: String },
    #[error("the base model {model} has no weights to merge with")]
    NoBaseWeights { model: String },
    #[error("the weights of {model} are stored in {format}, and are neither merged nor converted")]
    StoredBase { model: String, format: &'static str },
    #[error("the weights in {} are stored as {reason}", path.display())]
    Quantized { path: PathBuf, reason: String },
    /// What is written appears whole, so it needs a place of its own.
    #[error("{} is not empty", path.display())]
    Occupied { path: PathBuf },
    /// Memory that nobody planned.
    #[error("step {step}: {growth}; the state after this update is saved")]
    Overgrown { step: u64, growth: Box<Overgrowth> },
    /// The folder has something in it that no run has made.
    #[error("{} is not empty, and what it holds is not a run of this program", path.display())]
    NotARun { path: PathBuf },
    #[error(
        "{} is in use by another run{}",
        path.display(), pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
    )]
    InUse { path: PathBuf, pid: Option<u32> },
    #[error(
        "{} has {} MiB free; the checkpoint and the final weights take {} MiB",
        path.display(), free >> 20, needed.div_ceil(1 << 20)
    )]
    NoSpace { path: PathBuf, needed: u64, free: u64 },
    #[error("{} has {} MiB free; the file takes {} MiB", path.display(), free >> 20, needed.div_ceil(1 << 20))]
    NoSpaceFor { path: PathBuf, needed: u64, free: u64 },
    /// A model or a tokenizer that a file for llama.cpp cannot hold.
    #[error("{reason}")]
    Gguf { reason: String },
    /// The run that is here is another one.
    #[error("{0}")]
    Changed(Change),
    /// The adapters that were saved belong to other weights.
    #[error(
        "the weights of the base model {model} are not those that the checkpoint's adapters were trained on: {change}"
    )]
    BaseChanged { model: String, change: BaseChange },
    #[error(
        "no checkpoint can be used: {}",
        damaged.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    NoSoundCheckpoint { damaged: Vec<Damaged> },
    #[error("the tokenizer has {tokenizer} tokens, the model's vocabulary only {model}")]
    Vocabulary { tokenizer: usize, model: usize },
    /// Others take or give memory all the time.
    #[error("the GPU's memory does not settle: {times} plans in a row took more than the driver had said")]
    Unsteady { times: usize },
    #[error("a logit at position {position} is not a number: the weights are damaged, or too large for the precision")]
    LogitsNotANumber { position: usize },
    #[error("a prompt has {tokens} tokens, more than the {longest} that were planned for")]
    LongPrompt { tokens: usize, longest: usize },
    /// A model with an encoder and a task without a source, or the other way round.
    #[error("`task: {task}` does not suit a {family} model, which {has} an encoder")]
    Streams { task: &'static str, family: &'static str, has: &'static str, other: &'static str },
    #[error("a model for this task makes no text")]
    NoText,
}

/// What is wrong with a configuration, wherever it came from.
fn reason(error: &ModelError) -> String {
    match error {
        ModelError::Config(reason) => reason.clone(),
        other => other.to_string(),
    }
}

impl TrainError {
    /// What to do about it.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Weights(error) => error.hints(),
            Self::Model(error) | Self::Shape(error) | Self::ModelConfig { source: error, .. } => {
                error.hint().into_iter().collect()
            }
            Self::Streams { other, .. } => vec![format!("use `task: {other}`, or another model")],
            Self::NoModel { presets, .. } => vec![format!("presets are {presets}")],
            Self::NotInCache { id, presets, .. } => vec![
                format!("models are not downloaded by plimsoll; fetch it with `hf download {id}`"),
                format!("or use a preset: {presets}"),
            ],
            Self::Adapter { base, .. } => {
                let base = base.as_ref().map_or_else(String::new, |name| format!(": `{name}`"));
                vec![
                    format!("set `model` to the model that the adapter was trained on{base}"),
                    "to train the adapter on, set `init_from` to its folder".to_owned(),
                ]
            }
            Self::AdapterDiffers { .. } => {
                vec![
                    "set method.lora (r, alpha, rslora, targets) and `task` to what its adapter_config.json says"
                        .to_owned(),
                ]
            }
            Self::NoModelConfig { .. } => vec![FOLDER_HOLDS.to_owned()],
            Self::Vocabulary { .. } => {
                vec!["use the tokenizer that came with the model, or set data.tokenizer to its folder".to_owned()]
            }
            Self::AdapterTensor { .. } => vec![
                "only LoRA layers and modules saved whole can be merged, and they must belong to this base model"
                    .to_owned(),
            ],
            Self::StoredBase { .. } => {
                vec!["name the folder of the model that they were made from: merge ADAPTER --base FOLDER".to_owned()]
            }
            Self::Quantized { .. } => {
                vec!["use the model that they were made from, with `base: nf4` if it is to take as little memory".to_owned()]
            }
            Self::NoBaseWeights { .. } => vec!["name the folder of the base model with --base".to_owned()],
            Self::Occupied { .. } => vec!["choose a new folder with --out".to_owned()],
            Self::NotARun { .. } => vec!["choose a new folder".to_owned()],
            Self::InUse { .. } => vec!["wait until it ends, or choose another folder".to_owned()],
            Self::Changed(_) => vec!["go on with the value it had, or start a new run in another folder".to_owned()],
            Self::BaseChanged { .. } => {
                vec!["put back the model that the run began with, or start a new run in another folder".to_owned()]
            }
            Self::Overgrown { .. } => vec![
                "the same command goes on from there; `plan.json` and `metrics.jsonl` have what was planned and measured"
                    .to_owned(),
                "that a run outgrows its plan is a defect of plimsoll or of a library: please report it with these files"
                    .to_owned(),
            ],
            Self::NoSoundCheckpoint { .. } => {
                vec!["restore one of them, or remove the folder `checkpoints` to start from the beginning".to_owned()]
            }
            _ => Vec::new(),
        }
    }

    /// Whether only writing failed, so that a run may go on without what was to be written.
    pub(crate) fn is_of_writing(&self) -> bool {
        matches!(self, TrainError::Io { .. } | TrainError::Weights(WeightError::Write { .. }))
    }

    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        TrainError::Io { path: path.to_owned(), source }
    }
}
