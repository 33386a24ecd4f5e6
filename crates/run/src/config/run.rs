//! The run file: its top level and the small sections.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::data::DataConfig;
use super::device::{DeviceChoice, DeviceFigures};
use super::kind::{Kind, Range};
use super::method::{Method, MethodKeys};
use super::model::{ModelKeys, ModelSource};
use super::optimizer::{OptimizerConfig, ScheduleConfig};
use super::paths::PathKind;
use super::reader::Reader;
use super::schema::{
    TASK_NAMES, boolean, budget, count, either, from_zero, host_budget, number_or_none, path, section, text, up_to,
    word, word_of,
};
use super::section::{Field, Keys, section};
use super::size::{Budget, HostBudget};
use super::tasks::{DpoConfig, OrpoConfig, RankingConfig, RewardConfig};
use super::words::{BaseFormat, Goal, GuardAction, Init, KeepPrecision, Mode, Precision, SavePlan};
use crate::failure::Failure;

section! {
    /// The typed configuration of a run.
    pub struct RunConfig {
        /// A preset, a local Hugging Face folder, a hub id, or the shape as a mapping.
        model: ModelSource = either::<ModelKeys>(Kind::Path(PathKind::Folder)),
            also ["model_name_or_path", "pretrained_model_name_or_path", "base_model", "model_name", "model_id"];
        /// Where the initial weights come from; `auto` is random for a shape, else the model's files.
        init: Init = word::<Init>(), default "auto";
        /// What is trained for.
        task: String = word_of(&TASK_NAMES), default "sft", also ["stage", "objective", "rl"];
        /// Settings of `task: reward`.
        reward: RewardConfig = section::<RewardConfig>();
        /// Settings of `task: ranking`.
        ranking: RankingConfig = section::<RankingConfig>();
        /// Settings of `task: dpo`.
        dpo: DpoConfig = section::<DpoConfig>();
        /// Settings of `task: orpo`.
        orpo: OrpoConfig = section::<OrpoConfig>();
        /// A run's `final` folder or one of PEFT's, of the same model and method, to start from: its adapters and its head.
        init_from: Option<PathBuf> = path(PathKind::Plain), also ["resume_from_adapter", "adapter_name_or_path", "lora_model_dir"];
        /// Whether the embedding of the model's padding token is trained where data has it; transformers never does.
        train_padding: bool = boolean(), default "false";
        /// Which weights are trained: all of them, all but some, or LoRA adapters.
        method: Method = either::<MethodKeys>(Kind::Word(&["full", "lora"])), default "full",
            also ["finetuning_type", "adapter", "peft_config"];
        /// How the frozen weights beside adapters are stored; in the precision of the run if unset. `fp8`, `int8` and `nf4`
        /// take 8, 8 and 4 bits for each weight of a projection. `auto` is the precision of the run where that fits, else
        /// 8 bits (`fp8` where the GPU multiplies it, `int8` elsewhere), else `nf4`.
        base: Option<BaseFormat> = word::<BaseFormat>();
        /// The arithmetic; `auto` is fp32 on the CPU and a sixteen-bit type on GPUs. `fp16` scales the loss dynamically.
        precision: Precision = word::<Precision>(), default "auto",
            also ["dtype", "torch_dtype", "mixed_precision"];
        /// The training and evaluation data.
        data: DataConfig = section::<DataConfig>(), also ["dataset", "datasets"];
        /// The effective batch of an update.
        batch: Batch = section::<BatchKeys>();
        /// Memory budgets.
        memory: MemoryConfig = section::<MemoryConfig>();
        /// The optimizer and its hyper-parameters.
        optimizer: OptimizerConfig = section::<OptimizerConfig>(), also ["optim", "optimizer_type"];
        /// The learning rate over time, and the length of the run.
        schedule: ScheduleConfig = section::<ScheduleConfig>(), also ["lr_scheduler_type", "lr_scheduler", "scheduler"];
        /// The largest global gradient norm; `none` does not clip.
        clip: Option<f64> = number_or_none(Range::ABOVE_ZERO), default "1.0",
            also ["max_grad_norm", "gradient_clipping", "grad_clip", "clip_grad_norm"];
        /// Evaluation during the run.
        eval: EvalConfig = section::<EvalConfig>();
        /// Checkpoints.
        save: SaveConfig = section::<SaveConfig>();
        /// What is shown while the run goes on.
        log: LogConfig = section::<LogConfig>();
        /// What to do about updates that would do harm.
        guard: GuardConfig = section::<GuardConfig>();
        /// Seed of everything random.
        seed: u64 = from_zero(), default "42", also ["random_state", "data_seed"];
        /// The run folder; runs/NAME if unset.
        out: Option<PathBuf> = path(PathKind::Plain), also ["output_dir", "save_dir"];
        /// The name of the run; the run file's name if unset.
        name: Option<String> = text(), also ["run_name", "wandb_name"];
        /// `auto`, `cpu`, `cuda:0` or, for `plan`, the name of a GPU, or {memory, tflops, bandwidth} of any other.
        device: DeviceChoice = either::<DeviceFigures>(Kind::Text), default "auto", also ["device_map"];
        /// Whether GPU schedules are recorded and replayed (compiled) or run operator by operator (eager).
        mode: Mode = word::<Mode>(), default "compiled";
        /// Memory decisions pinned by the user; the planner makes the others.
        plan: PlanPins = section::<PlanPins>();
    }
    then Self::with_init;
}

section! {
    /// The keys of `batch`, of which one is set.
    pub struct BatchKeys {
        /// Sequences per update, exact.
        sequences: Option<u64> = up_to(1 << 20), default "16", also ["batch_size", "global_batch_size", "size"];
        /// The most tokens per update, instead of `batch.sequences`.
        tokens: Option<u64> = up_to(1 << 31);
    }
    one_of &[&["sequences", "tokens"]];
}

section! {
    pub struct MemoryConfig {
        /// GPU memory budget: a size, a percentage of the available memory, or `auto` for all of it.
        gpu: Budget = budget(), default "auto", also ["vram"];
        /// Host memory budget: a size, a percentage of the available memory, `auto` for 90% of it, or
        /// {cpu: SIZE, gpu: SIZE} by the device that trains.
        host: HostBudget = host_budget(), default "auto", also ["ram", "cpu"];
        /// The fastest plan within the budgets, or the one with the lowest memory.
        goal: Goal = word::<Goal>(), default "fastest";
    }
}

section! {
    pub struct EvalConfig {
        /// Evaluate every N updates; at the end only if unset.
        every: Option<u64> = count(), also ["eval_steps", "eval_interval"];
        /// Held-out examples to generate answers for at the end of the run.
        samples: Option<u64> = count();
        /// Held-out rows that the model answers at every evaluation, for `bleu` (task: seq2seq); 0 for none.
        bleu_rows: u64 = from_zero(), default "64";
    }
}

section! {
    pub struct SaveConfig {
        /// Save a checkpoint every N updates.
        every: Option<u64> = count(), also ["save_steps", "save_interval"];
        /// The longest time in minutes without a checkpoint; `none` saves by `save.every` only.
        minutes: Option<f64> = number_or_none(Range::ABOVE_ZERO), default "30";
        /// Number of most recent checkpoints to keep.
        keep: u64 = count(), default "2", also ["save_total_limit"];
        /// Metric whose best checkpoint is saved at every evaluation that improves it, and kept beside the most recent ones.
        best: Option<String> = word_of(&["loss", "bleu"]), also ["metric_for_best_model"];
    }
}

section! {
    pub struct LogConfig {
        /// Show a line every N updates; if unset, about one a second on a terminal and every update elsewhere.
        /// metrics.jsonl and log.txt have every update.
        every: Option<u64> = count(), also ["logging_steps", "log_every_n_steps"];
        /// Whether the run folder gets an offline run of W&B too, which `wandb sync` uploads.
        wandb: bool = boolean(), default "false", also ["use_wandb"];
        /// The project of that run; plimsoll if unset.
        wandb_project: Option<String> = text();
    }
}

section! {
    /// Updates whose loss or gradient is not a number, or whose loss is far above the usual one.
    pub struct GuardConfig {
        /// Stop the run with the last good state saved, or skip the data of such an update.
        action: GuardAction = word::<GuardAction>(), default "stop";
        /// Updates that may be skipped in a run; one more stops it.
        limit: u64 = from_zero(), default "10";
        /// A loss above this multiple of the usual one counts too; `none` never.
        spike: Option<f64> = number_or_none(Range::ABOVE_ONE), default "none";
    }
}

section! {
    /// Memory decisions made by the user; the planner makes those that are not pinned.
    pub struct PlanPins {
        /// Tokens per micro-batch.
        micro_batch_tokens: Option<u64> = up_to(1 << 24);
        /// Value class to the number of layers that recompute it; an empty mapping recomputes nothing.
        recompute: Option<BTreeMap<String, u64>> = super::schema::Form::Counts;
        /// Chunks in which the logits are computed.
        loss_chunks: Option<u64> = count();
        /// Chunks of the tokens that an MLP works on one after another.
        mlp_chunks: Option<u64> = count();
        /// Whether the backward pass updates each parameter as soon as its gradient is complete. Needs `clip: none` and
        /// updates of a single micro-batch; nothing can be left out of an update that turns out bad.
        update_in_backward: Option<bool> = boolean(), also ["optimizer_in_bwd", "fused_backward_pass"];
        /// Whether what the forward pass keeps for adapters' gradients alone may be rounded to e4m3 where that makes a plan
        /// faster or fit. Nothing but these gradients changes by it.
        keep: KeepPrecision = word::<KeepPrecision>(), default "exact";
        /// Write checkpoints beside training, from a snapshot in host memory, or between updates; `auto` is beside where
        /// `save.every` or `save.best` is set and the budget has room.
        save: SavePlan = word::<SavePlan>(), default "auto";
    }
}

/// The effective batch of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// Exact.
    Sequences(u64),
    /// At most.
    Tokens(u64),
}

impl Field for Batch {
    fn read_field(section: &Reader<'_>, name: &str) -> Result<Self, Failure> {
        let section = section.section(name)?;
        match BatchKeys::read(&section)? {
            BatchKeys { tokens: Some(tokens), .. } => Ok(Self::Tokens(tokens)),
            BatchKeys { sequences: Some(sequences), .. } => Ok(Self::Sequences(sequences)),
            _ => Err(section.missing("sequences")),
        }
    }
}

impl RunConfig {
    /// `init` inside the mapping of a model's shape is the same key as the one beside it.
    fn with_init(mut self, _: &Reader<'_>) -> Result<Self, Failure> {
        let ModelSource::Shape(shape) = &self.model else { return Ok(self) };
        self.init = shape.init.unwrap_or(self.init);
        if self.init == Init::Pretrained {
            return Err(Failure::config(
                "`init: pretrained` needs a model with weights, but `model` gives only a shape",
            )
            .hint("set `model` to a folder or a hub id, or use `init: random`"));
        }
        Ok(self)
    }
}
