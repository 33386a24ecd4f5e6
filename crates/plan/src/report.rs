//! What a plan costs, for people and for scripts.

use std::collections::BTreeMap;

use plimsoll_graph::Role;
use serde::Serialize;

/// Bytes of an arena at its fullest, by what they hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Categories {
    pub weights: u64,
    pub adapters: u64,
    pub gradients: u64,
    pub optimizer: u64,
    pub activations: u64,
    /// Logits of one chunk and the gradient the loss hands back.
    pub loss: u64,
    /// Keys and values of sequences that are generated.
    pub cache: u64,
    /// Tokens, positions, rotary table, hyperparameters.
    pub inputs: u64,
    pub workspace: u64,
    pub transfer: u64,
    /// Taken by the driver and its libraries.
    pub context: u64,
    /// Schedules that are recorded to be replayed.
    pub recorded: u64,
    /// Above what any layout would need.
    pub fragmentation: u64,
}

impl Categories {
    pub fn add(&mut self, role: Role, bytes: u64) {
        *match role {
            Role::Weight => &mut self.weights,
            Role::Adapter => &mut self.adapters,
            Role::Gradient => &mut self.gradients,
            Role::OptimizerState => &mut self.optimizer,
            Role::Activation => &mut self.activations,
            Role::Loss => &mut self.loss,
            Role::Cache => &mut self.cache,
            Role::Input => &mut self.inputs,
            Role::Workspace => &mut self.workspace,
        } += bytes;
    }

    pub fn rows(&self) -> [(&'static str, u64); 13] {
        [
            ("weights", self.weights),
            ("adapters", self.adapters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("loss", self.loss),
            ("cache", self.cache),
            ("inputs", self.inputs),
            ("workspace", self.workspace),
            ("transfer", self.transfer),
            ("context", self.context),
            ("recorded", self.recorded),
            ("fragmentation", self.fragmentation),
        ]
    }

    pub fn total(&self) -> u64 {
        self.rows().iter().map(|(_, bytes)| bytes).sum()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceReport {
    pub budget_bytes: u64,
    pub planned_bytes: u64,
    /// Above the plan, where a run counts as having outgrown it.
    pub allowance_bytes: u64,
    pub categories: Categories,
}

impl DeviceReport {
    pub fn new(budget_bytes: u64, categories: Categories) -> Self {
        let planned_bytes = categories.total();
        Self {
            budget_bytes,
            planned_bytes,
            allowance_bytes: allowance(planned_bytes, LIBRARIES_MOVE_BYTES),
            categories,
        }
    }
}

/// How far what no plan controls may move while a run goes on: the heap, and pages of code as they are first used.
const PROCESS_MOVES_BYTES: u64 = 32 << 20;
/// The same with a driver and its libraries.
const LIBRARIES_MOVE_BYTES: u64 = 128 << 20;
/// Of a large plan, one part in so many.
const ALLOWANCE_PART: u64 = 50;
const ALLOWANCE_BYTES_MAX: u64 = 256 << 20;

fn allowance(planned_bytes: u64, least_bytes: u64) -> u64 {
    (planned_bytes / ALLOWANCE_PART).clamp(least_bytes, ALLOWANCE_BYTES_MAX)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostCategories {
    /// The program itself: code, libraries, tokenizer, threads.
    pub process: u64,
    pub offload: u64,
    pub pinned: u64,
    pub data: u64,
    /// A copy of what a checkpoint is made of, from which it is written while training goes on.
    pub snapshot: u64,
    /// The arena's categories, where the device computes in host memory.
    #[serde(flatten)]
    pub arena: Option<Categories>,
}

impl HostCategories {
    pub fn rows(&self) -> Vec<(&'static str, u64)> {
        let own = [
            ("process", self.process),
            ("offload", self.offload),
            ("pinned", self.pinned),
            ("data", self.data),
            ("snapshot", self.snapshot),
        ];
        self.arena.iter().flat_map(Categories::rows).chain(own).collect()
    }

    pub fn total(&self) -> u64 {
        self.rows().iter().map(|(_, bytes)| bytes).sum()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HostReport {
    pub budget_bytes: u64,
    pub planned_bytes: u64,
    /// Above the plan, where a run counts as having outgrown it.
    pub allowance_bytes: u64,
    pub categories: HostCategories,
}

impl HostReport {
    pub fn new(budget_bytes: u64, categories: HostCategories) -> Self {
        let planned_bytes = categories.total();
        let least_bytes = if categories.arena.is_some() { PROCESS_MOVES_BYTES } else { LIBRARIES_MOVE_BYTES };
        Self { budget_bytes, planned_bytes, allowance_bytes: allowance(planned_bytes, least_bytes), categories }
    }

    /// Where checkpoints are written from.
    pub fn saving(&self) -> SaveMode {
        if self.categories.snapshot > 0 { SaveMode::Beside } else { SaveMode::Between }
    }
}

/// When checkpoints are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SaveMode {
    /// Training waits.
    Between,
    /// From a snapshot, while training goes on.
    Beside,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Predicted {
    pub step_ms: f64,
    pub tokens_per_s: f64,
    pub bound_by: &'static str,
    /// Share of the time of an update, by what limits it: `matmul`, `attention`, `memory`, `launch`.
    pub limits: BTreeMap<&'static str, f64>,
}

/// One line of the table of plans.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alternative {
    pub name: String,
    pub micro_batch_tokens: usize,
    pub gpu_bytes: u64,
    pub host_bytes: u64,
    pub tokens_per_s: f64,
    pub fits: bool,
    pub chosen: bool,
    pub why_not: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EffectiveBatch {
    /// Exact, unless the update is given in tokens: then as many as fit if all are of the greatest length.
    pub sequences: usize,
    pub tokens_max: usize,
    /// Whether the update is given in tokens.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub in_tokens: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayoutReport {
    pub arena_bytes: u64,
    pub lower_bound_bytes: u64,
}

/// What the same plan takes of a GPU under either way of running it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Modes {
    /// Schedules are recorded once and replayed.
    pub compiled_bytes: u64,
    /// Step by step; nothing is recorded.
    pub eager_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub fits: bool,
    pub device: String,
    pub gpu: DeviceReport,
    pub host: HostReport,
    pub effective_batch: EffectiveBatch,
    pub micro_batch_tokens: usize,
    pub accumulation: usize,
    /// Class of values → number of layers in which it is rebuilt instead of kept.
    pub recompute: BTreeMap<String, usize>,
    pub offload: BTreeMap<String, usize>,
    pub loss_chunks: usize,
    /// Chunks of the rows inside an MLP.
    pub mlp_chunks: usize,
    /// Whether each parameter is updated in the backward pass, as soon as its gradient is complete.
    pub update_in_backward: bool,
    /// Class of values → number of layers in which adapters' gradients are made from values rounded to e4m3.
    pub keep: BTreeMap<String, usize>,
    pub save: SaveMode,
    pub layout: LayoutReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modes: Option<Modes>,
    pub predicted: Predicted,
    pub alternatives: Vec<Alternative>,
    /// What more memory would buy, where that was asked for.
    pub next_gib: Vec<SpeedAt>,
}

/// The speed that a budget allows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SpeedAt {
    pub gpu_bytes: u64,
    pub host_bytes: u64,
    pub tokens_per_s: f64,
}

impl Report {
    /// The plan as a row beside others.
    pub fn as_alternative(&self, name: &str) -> Alternative {
        Alternative {
            name: name.to_owned(),
            micro_batch_tokens: self.micro_batch_tokens,
            gpu_bytes: self.gpu.planned_bytes,
            host_bytes: self.host.planned_bytes,
            tokens_per_s: self.predicted.tokens_per_s,
            fits: true,
            chosen: false,
            why_not: None,
        }
    }

    /// Puts the measured figures of what no plan controls in place of the ones planned with.
    pub fn restate(&mut self, fixed: &crate::Fixed) {
        let host = &mut self.host.categories;
        (host.process, host.data) = (fixed.host_process_bytes, fixed.host_data_bytes);
        self.host = HostReport::new(self.host.budget_bytes, host.clone());
        if self.gpu.planned_bytes > 0 {
            self.gpu.categories.context = fixed.gpu_context_bytes;
            self.gpu = DeviceReport::new(self.gpu.budget_bytes, self.gpu.categories);
        }
    }
}
