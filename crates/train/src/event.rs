//! What a run tells whoever watches it. Each event is also a line of `metrics.jsonl`.

use serde::Serialize;

use crate::Metrics;

/// One update.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    /// The share of the micro-batches' token slots that held a token.
    pub fill_rate: f64,
    pub gpu_used_bytes: u64,
    pub host_rss_bytes: u64,
    /// What the task reports of the update, by name.
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// One evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalEvent {
    pub loss: f64,
    pub tokens: u64,
    pub sequences: u64,
    pub ms: f64,
    #[serde(flatten)]
    pub metrics: Metrics,
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
        folder: std::path::PathBuf,
    },
}
