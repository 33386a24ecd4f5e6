use plimsoll_graph::GraphError;
use thiserror::Error;

use crate::Alternative;

#[derive(Debug, Error)]
pub enum PlanError {
    /// Nothing fits. All figures in bytes.
    #[error("no plan fits: the smallest needs {needed_bytes} bytes of {memory} memory, the budget is {budget_bytes}")]
    DoesNotFit {
        /// `GPU` or `host`.
        memory: &'static str,
        budget_bytes: u64,
        needed_bytes: u64,
        /// What the smallest plan consists of, largest first.
        largest: Vec<(&'static str, u64)>,
        alternatives: Vec<Alternative>,
    },
    /// A decision of the user that cannot be met.
    #[error("{reason}")]
    Pin { key: String, reason: String },
    #[error("{0}")]
    Batch(String),
    #[error("the planner made a plan that does not hold (a defect of this program): {0}")]
    Unsound(#[from] crate::verify::Violation),
    #[error(transparent)]
    Graph(#[from] GraphError),
}
