//! What the same run takes in transformers and PEFT, on the card that it is planned for.
//!
//! Memory follows from the operators ([`demand`]); what the allocator and the driver add, and the speed, are fitted to runs
//! that were measured ([`table`]), and the error with which each of these is predicted from the others is stated.

mod demand;
mod fit;
mod table;

use plimsoll_graph::DType;
use plimsoll_models::Lora;
use plimsoll_plan::{Backing, DeviceProfile, Report};
use plimsoll_train::Spec;
use serde::Serialize;

pub use fit::Spread;

use crate::config::{BaseFormat, Method, Resolved, StateStorage};
use crate::device;
use crate::failure::Failure;
use crate::spec::{compute, spec};
use crate::units::bytes;
use demand::{Demand, Workload};
use table::{Fitted, MOMENTS_EIGHT, MOMENTS_FLOAT32, MOMENTS_SIXTEEN};

/// The plan beside what transformers and PEFT take.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub with: &'static str,
    pub measured_on: String,
    pub software: String,
    /// Measured runs that the figures rest on.
    pub runs: usize,
    /// Of each run, predicted from all the others.
    pub error: ComparisonError,
    /// The plan first.
    pub rows: Vec<ComparedRow>,
    /// What the figures assume.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ComparisonError {
    /// Of what PyTorch's allocator hands out.
    pub allocated_bytes: Spread,
    /// Of what the driver says is in use.
    pub gpu_bytes: Spread,
    pub tokens_per_s: Spread,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedRow {
    pub name: String,
    /// Sequences that are in memory at a time, and how long they may be.
    pub sequences: usize,
    pub length: usize,
    pub gpu_bytes: u64,
    pub categories: ComparedBytes,
    /// `None` where no measured run says it.
    pub tokens_per_s: Option<f64>,
    pub fits: bool,
    pub why_not: Option<String>,
}

/// Bytes at the fullest moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ComparedBytes {
    pub weights: u64,
    pub adapters: u64,
    pub gradients: u64,
    pub optimizer: u64,
    pub activations: u64,
    /// Logits with their copies and gradients.
    pub logits: u64,
    /// Of the driver, of libraries, and what the allocator holds and cannot use.
    pub context: u64,
}

impl ComparedBytes {
    pub fn rows(&self) -> [(&'static str, u64); 7] {
        [
            ("weights", self.weights),
            ("adapters", self.adapters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("logits", self.logits),
            ("context, allocator", self.context),
        ]
    }
}

/// Families whose operators Liger replaces.
const LIGER: [&str; 5] = ["llama", "mistral", "qwen2", "qwen3", "gemma2"];
/// Those of which runs were measured, or whose blocks are made of the same operators.
const MEASURED: [&str; 7] = ["llama", "mistral", "qwen2", "qwen3", "nanochat", "t5", "mt5"];
/// Tasks that transformers and PEFT do in one pass of a model over full sequences.
const TASKS: [&str; 5] = ["sft", "pretrain", "seq2seq", "reward", "classification"];

/// Compares the plan in `report` with what the same run takes in transformers and PEFT.
pub fn compare_with_pytorch(resolved: &Resolved, report: &Report) -> Result<Comparison, Failure> {
    let profile = device::planned(resolved, false)?.profile;
    let spec = spec(resolved, &profile)?;
    comparable(resolved, &spec, &profile)?;
    let comparer = Comparer { resolved, spec: &spec, profile: &profile, report, fitted: Fitted::new() };
    let mut rows = vec![own(report, &spec)];
    let mut ways = vec![(false, false), (false, true)];
    if LIGER.contains(&spec.model.config.family.model_type) {
        ways.extend([(true, false), (true, true)]);
    }
    for (liger, checkpointing) in ways {
        rows.extend(comparer.rows(liger, checkpointing));
    }
    let Fitted { measured_on, software, runs, allocated_error, memory_error, speed_error, .. } = comparer.fitted;
    let notes = notes(resolved, &spec, &profile, &measured_on);
    let error =
        ComparisonError { allocated_bytes: allocated_error, gpu_bytes: memory_error, tokens_per_s: speed_error };
    Ok(Comparison { with: "pytorch", measured_on, software, runs, error, rows, notes })
}

/// What no measured run resembles is not compared.
fn comparable(resolved: &Resolved, spec: &Spec, profile: &DeviceProfile) -> Result<(), Failure> {
    let run = &resolved.run;
    if profile.backing == Backing::Host {
        return Err(Failure::usage("the comparison with PyTorch is one of GPUs, but the run is planned for the CPU")
            .hint("name a GPU with --device, such as --device 'RTX 4090'; it need not be in this machine"));
    }
    if compute(resolved, profile)? == DType::F32 {
        return Err(Failure::usage("the comparison with PyTorch is one of sixteen-bit runs, but this one is in fp32")
            .hint("remove `precision`, or set it to bf16"));
    }
    if run.base.is_some_and(|base| base != BaseFormat::Bf16) {
        return Err(Failure::usage("the comparison with PyTorch is one of sixteen-bit bases, but `base` is another")
            .hint("compare it without `base`"));
    }
    if !TASKS.contains(&run.task.as_str()) {
        let text = format!("there is no comparison with PyTorch for `task: {}`", run.task);
        return Err(Failure::usage(text).hint(format!("there is one for {}", TASKS.join(", "))));
    }
    if !spec.recipe.freeze.is_empty() {
        return Err(Failure::usage("there is no comparison with PyTorch for runs with frozen parts")
            .hint("compare it with `method: full` or `method: lora`"));
    }
    Ok(())
}

struct Comparer<'a> {
    resolved: &'a Resolved,
    spec: &'a Spec,
    profile: &'a DeviceProfile,
    report: &'a Report,
    fitted: Fitted,
}

impl Comparer<'_> {
    /// At the plan's own micro-batch, and where that does not fit, at the largest one that does.
    fn rows(&self, liger: bool, checkpointing: bool) -> Vec<ComparedRow> {
        let group = self.spec.task.group();
        let own = (self.report.micro_batch_tokens / self.spec.max_length).clamp(group, self.spec.sequences);
        let own = own / group * group;
        let first = self.row(liger, checkpointing, own);
        let divides = |n: &usize| *n < own && n.is_multiple_of(group) && self.spec.sequences.is_multiple_of(*n);
        let mut smaller = (1..own).rev().filter(divides).map(|n| self.row(liger, checkpointing, n));
        let other = if first.fits { None } else { smaller.find(|row| row.fits) };
        [Some(first), other].into_iter().flatten().collect()
    }

    fn row(&self, liger: bool, checkpointing: bool, sequences: usize) -> ComparedRow {
        let Spec { model, task, max_length, .. } = self.spec;
        let lora = self.spec.recipe.lora.clone();
        let (passes, state_bytes) =
            (self.spec.sequences.div_ceil(sequences), state_bytes(self.resolved, lora.as_ref()));
        let name = format!(
            "transformers{}{}{}",
            if lora.is_some() { " + PEFT" } else { "" },
            if liger { " + Liger" } else { "" },
            if checkpointing { " + checkpointing" } else { "" }
        );
        let workload = Workload {
            model: &model.config,
            vocabulary: task.head().uses_vocabulary(),
            sequences,
            passes,
            length: *max_length,
            lora,
            state_bytes,
            liger,
            checkpointing,
        };
        let demand = workload.demand();
        let gpu_bytes = self.fitted.model.card_bytes(&demand) as u64;
        let seconds = self.fitted.model.seconds(&demand, self.profile);
        let tokens = (self.spec.sequences * max_length) as f64;
        let over = gpu_bytes.saturating_sub(self.report.gpu.budget_bytes);
        ComparedRow {
            name,
            sequences,
            length: *max_length,
            gpu_bytes,
            categories: categories(&demand, gpu_bytes),
            tokens_per_s: is_timed(self.resolved).then_some(tokens / seconds),
            fits: over == 0,
            why_not: (over > 0).then(|| format!("{} over the budget", bytes(over))),
        }
    }
}

/// Only AdamW's own step was timed.
fn is_timed(resolved: &Resolved) -> bool {
    let optimizer = &resolved.run.optimizer;
    optimizer.name == "adamw" && optimizer.state != StateStorage::Int8
}

fn state_bytes(resolved: &Resolved, lora: Option<&Lora>) -> f64 {
    let optimizer = &resolved.run.optimizer;
    let moments = match (optimizer.state, lora) {
        (StateStorage::Int8, _) => MOMENTS_EIGHT,
        (_, Some(_)) => MOMENTS_FLOAT32,
        (_, None) => MOMENTS_SIXTEEN,
    };
    match optimizer.name.as_str() {
        "adamw" => moments,
        // A row and a column for a matrix.
        "adafactor" => 0.0,
        _ => moments / 2.0,
    }
}

fn categories(demand: &Demand, gpu_bytes: u64) -> ComparedBytes {
    let whole = |bytes: f64| bytes as u64;
    ComparedBytes {
        weights: whole(demand.weights),
        adapters: whole(demand.adapters),
        gradients: whole(demand.gradients),
        optimizer: whole(demand.optimizer),
        activations: whole(demand.activations),
        logits: whole(demand.logits),
        context: gpu_bytes.saturating_sub(whole(demand.allocated())),
    }
}

/// The plan in the same words.
fn own(report: &Report, spec: &Spec) -> ComparedRow {
    let of = &report.gpu.categories;
    let known = of.weights + of.adapters + of.gradients + of.optimizer + of.activations + of.loss;
    ComparedRow {
        name: "this plan".to_owned(),
        sequences: (report.micro_batch_tokens / spec.max_length).max(1),
        length: spec.max_length,
        gpu_bytes: report.gpu.planned_bytes,
        categories: ComparedBytes {
            weights: of.weights,
            adapters: of.adapters,
            gradients: of.gradients,
            optimizer: of.optimizer,
            activations: of.activations,
            logits: of.loss,
            context: report.gpu.planned_bytes.saturating_sub(known),
        },
        tokens_per_s: Some(report.predicted.tokens_per_s),
        fits: true,
        why_not: None,
    }
}

fn notes(resolved: &Resolved, spec: &Spec, profile: &DeviceProfile, measured_on: &str) -> Vec<String> {
    let full = matches!(resolved.run.method, Method::Full { .. });
    let weights = match full {
        true => "PyTorch: weights, gradients and optimizer states in bfloat16, without float32 copies",
        false => "PyTorch: the base in bfloat16, adapters in float32, as PEFT keeps them",
    };
    let mut notes = vec![format!("{weights}; sdpa attention; every sequence of {} tokens", spec.max_length)];
    if profile.name != measured_on {
        notes.push(format!(
            "PyTorch's speed was measured on {measured_on}; here it is scaled by the rates of {}, which no run has checked",
            profile.name
        ));
    }
    let family = spec.model.config.family.model_type;
    if !MEASURED.contains(&family) {
        notes.push(format!("no run of a {family} model was measured"));
    }
    if !is_timed(resolved) {
        let optimizer = &resolved.run.optimizer;
        notes.push(format!("no speed: {} with {} states was not timed", optimizer.name, optimizer.state));
    }
    notes
}
