//! The typed configuration of a run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::method::{self, Method};
use super::model::{self, ModelSource};
use super::node::Node;
use super::reader::Reader;
use super::size::{Budget, Extent};
use super::sources::SourceEntry;
use super::words::{
    DataFormat, DataMode, Goal, Init, Mode, OptimizerName, Overlong, Precision, ScheduleName, StateStorage, Storage,
    Task,
};
use crate::error::Failure;

#[derive(Clone, Debug, PartialEq)]
pub struct RunConfig {
    pub model: ModelSource,
    pub init: Init,
    pub task: Task,
    pub method: Method,
    /// How frozen weights are stored.
    pub base: Storage,
    pub precision: Precision,
    pub data: DataConfig,
    pub batch: Batch,
    pub memory: MemoryConfig,
    pub optimizer: OptimizerConfig,
    pub schedule: ScheduleConfig,
    /// The largest global gradient norm; `None` does not clip.
    pub clip: Option<f64>,
    pub eval: EvalConfig,
    pub save: SaveConfig,
    pub seed: u64,
    /// The run folder.
    pub out: Option<PathBuf>,
    pub name: Option<String>,
    /// `auto`, `cpu`, `cuda:0` or, to plan for it, the name of a card.
    pub device: String,
    pub mode: Mode,
    pub plan: PlanPins,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DataConfig {
    /// Empty where none is given: `plan` and `bench` need no data.
    pub train: Vec<SourceEntry>,
    pub eval: Vec<String>,
    /// The share of the training rows held out for evaluation.
    pub eval_split: Option<f64>,
    /// Folder of the tokenizer, where it is not the model's own.
    pub tokenizer: Option<String>,
    /// `auto`, the name of a chat template, or its file.
    pub template: String,
    pub format: DataFormat,
    /// In tokens.
    pub max_length: u64,
    pub overlong: Overlong,
    pub shuffle: bool,
    pub mode: DataMode,
    /// The folder of tokenised data; beside the run where none is given.
    pub cache: Option<String>,
    /// What a stream may hold of tokenised data; `auto` is 96 MiB.
    pub buffer: Budget,
    /// Threads that tokenise; one for each core, at most 16, where none is given.
    pub workers: Option<u64>,
    /// The share of the rows that may be unusable: 0 refuses the first, 1 leaves out any number.
    pub bad_rows: f64,
}

/// The effective batch of an update, exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    Sequences(u64),
    Tokens(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    pub gpu: Budget,
    pub host: Budget,
    pub goal: Goal,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    pub name: OptimizerName,
    pub lr: f64,
    pub weight_decay: f64,
    pub betas: [f64; 2],
    pub eps: f64,
    pub momentum: Option<f64>,
    pub state: StateStorage,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleConfig {
    pub name: ScheduleName,
    pub warmup: Extent,
    pub length: Length,
    /// The last learning rate as a share of the highest.
    pub last: f64,
    /// Where `constant-linear` begins to fall.
    pub decay_start: Option<Extent>,
}

/// How long to train.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    Epochs(f64),
    Steps(u64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct EvalConfig {
    /// In updates.
    pub every: Option<u64>,
    pub samples: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SaveConfig {
    /// In updates.
    pub every: Option<u64>,
    pub keep: u64,
    /// The metric by which the best checkpoint is kept beside the latest.
    pub best: Option<String>,
}

/// Memory decisions taken by the user; what is not pinned is the planner's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanPins {
    pub micro_batch_tokens: Option<u64>,
    /// Value class to the number of layers that recompute it. `None` is not pinned; empty recomputes nothing.
    pub recompute: Option<BTreeMap<String, u64>>,
    pub loss_chunks: Option<u64>,
}

impl RunConfig {
    pub(super) fn read(tree: &Node) -> Result<Self, Failure> {
        let root = Reader::root(tree);
        let (model, init) = model::read(&root)?;
        Ok(Self {
            model,
            init,
            task: root.get("task")?,
            method: method::read(&root)?,
            base: root.get("base")?,
            precision: root.get("precision")?,
            data: data(&root.section("data")?)?,
            batch: batch(&root.section("batch")?)?,
            memory: memory(&root.section("memory")?)?,
            optimizer: optimizer(&root.section("optimizer")?)?,
            schedule: schedule(&root.section("schedule")?)?,
            clip: root.get("clip")?,
            eval: eval(&root.section("eval")?)?,
            save: save(&root.section("save")?)?,
            seed: root.get("seed")?,
            out: root.find::<String>("out")?.map(PathBuf::from),
            name: root.find("name")?,
            device: root.get("device")?,
            mode: root.get("mode")?,
            plan: plan(&root.section("plan")?)?,
        })
    }
}

fn data(section: &Reader<'_>) -> Result<DataConfig, Failure> {
    Ok(DataConfig {
        train: section.find("train")?.unwrap_or_default(),
        eval: section.find("eval")?.unwrap_or_default(),
        eval_split: section.find("eval_split")?,
        tokenizer: section.find("tokenizer")?,
        template: section.get("template")?,
        format: section.get("format")?,
        max_length: section.get("max_length")?,
        overlong: section.get("overlong")?,
        shuffle: section.get("shuffle")?,
        mode: section.get("mode")?,
        cache: section.find("cache")?,
        buffer: section.get("buffer")?,
        workers: section.find("workers")?,
        bad_rows: section.get("bad_rows")?,
    })
}

fn batch(section: &Reader<'_>) -> Result<Batch, Failure> {
    Ok(match section.find("tokens")? {
        Some(tokens) => Batch::Tokens(tokens),
        None => Batch::Sequences(section.get("sequences")?),
    })
}

fn memory(section: &Reader<'_>) -> Result<MemoryConfig, Failure> {
    Ok(MemoryConfig { gpu: section.get("gpu")?, host: section.get("host")?, goal: section.get("goal")? })
}

fn optimizer(section: &Reader<'_>) -> Result<OptimizerConfig, Failure> {
    let name = section.get("name")?;
    if let (OptimizerName::AdamW, Some(node)) = (name, section.node("momentum")) {
        return Err(Failure::usage(format!(
            "{}: `optimizer.momentum` belongs to `sgd`, but the optimizer is `{name}`",
            node.origin.place()
        ))
        .hint("use the first of `optimizer.betas` instead"));
    }
    let betas: Vec<f64> = section.get("betas")?;
    Ok(OptimizerConfig {
        name,
        lr: section.get("lr")?,
        weight_decay: section.get("weight_decay")?,
        betas: betas.try_into().map_err(|_| section.missing("betas"))?,
        eps: section.get("eps")?,
        momentum: section.find("momentum")?,
        state: section.get("state")?,
    })
}

fn schedule(section: &Reader<'_>) -> Result<ScheduleConfig, Failure> {
    let name = section.get("name")?;
    let decay_start = section.find("decay_start")?;
    if let (Some(node), true) = (section.node("decay_start"), name != ScheduleName::ConstantLinear) {
        return Err(Failure::usage(format!(
            "{}: `schedule.decay_start` belongs to `constant-linear`, but the schedule is `{name}`",
            node.origin.place()
        ))
        .hint("remove it, or set `schedule.name` to `constant-linear`"));
    }
    Ok(ScheduleConfig {
        name,
        warmup: section.get("warmup")?,
        length: match section.find("steps")? {
            Some(steps) => Length::Steps(steps),
            None => Length::Epochs(section.get("epochs")?),
        },
        last: section.get("final")?,
        decay_start,
    })
}

fn eval(section: &Reader<'_>) -> Result<EvalConfig, Failure> {
    Ok(EvalConfig { every: section.find("every")?, samples: section.find("samples")? })
}

fn save(section: &Reader<'_>) -> Result<SaveConfig, Failure> {
    Ok(SaveConfig { every: section.find("every")?, keep: section.get("keep")?, best: section.find("best")? })
}

fn plan(section: &Reader<'_>) -> Result<PlanPins, Failure> {
    let recompute = match section.node("recompute") {
        Some(_) => Some(section.counts("recompute")?.into_iter().collect()),
        None => None,
    };
    Ok(PlanPins {
        micro_batch_tokens: section.find("micro_batch_tokens")?,
        recompute,
        loss_chunks: section.find("loss_chunks")?,
    })
}
