//! The named numbers that a task counts beside the loss.
//!
//! The trainer still has a type for those of pairs; these functions are the only place that knows it.

use plimsoll_train::{EvalEvent, Outcome, PairMetrics, StepEvent};

/// In the order in which they are shown.
pub type Metrics = Vec<(&'static str, f64)>;

pub fn step_metrics(step: &StepEvent) -> Metrics {
    from_pairs(step.pairs)
}

pub fn eval_metrics(eval: &EvalEvent) -> Metrics {
    from_pairs(eval.pairs)
}

/// Of the last evaluation.
pub fn outcome_metrics(outcome: &Outcome) -> Metrics {
    from_pairs(outcome.last_pairs)
}

fn from_pairs(pairs: Option<PairMetrics>) -> Metrics {
    pairs.map_or_else(Vec::new, |pairs| vec![("accuracy", pairs.accuracy), ("margin", pairs.margin)])
}
