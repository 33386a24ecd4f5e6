use thiserror::Error;

/// What can be wrong with a graph. All of these are mistakes of whoever built it, not of a user.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum GraphError {
    #[error("{op}: expected {expected} inputs, got {got}")]
    InputCount { op: &'static str, expected: usize, got: usize },
    #[error("{op}: input {index} has shape {got}, expected {expected}")]
    Shape { op: &'static str, index: usize, expected: String, got: String },
    #[error("{op}: {reason}")]
    Invalid { op: &'static str, reason: String },
    #[error("no backward rule reaches {value}: {op} has none")]
    NotDifferentiable { op: &'static str, value: String },
}
