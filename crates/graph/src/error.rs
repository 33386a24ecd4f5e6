use thiserror::Error;

/// What can be wrong with a graph. All of these are mistakes of whoever built it, but for sizes, which a user may ask for.
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
    #[error("a tensor of shape {shape} is larger than any memory (4 TiB)")]
    TooLarge { shape: String },
    #[error("a program has at most {max} {what}")]
    TooMany { what: &'static str, max: usize },
}
