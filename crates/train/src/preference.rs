//! What the loss over pairs counts beside the loss.

use plimsoll_graph::ops::PAIR_STATS;
use serde::Serialize;

/// How well scores tell the preferred sequences from the others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PairMetrics {
    /// Share of the pairs whose preferred sequence has the higher score.
    pub accuracy: f64,
    /// Mean difference of the two scores.
    pub margin: f64,
}

impl PairMetrics {
    pub(crate) fn from_stats([pairs, right, margin]: [f64; PAIR_STATS]) -> Self {
        let pairs = pairs.max(1.0);
        Self { accuracy: right / pairs, margin: margin / pairs }
    }
}
