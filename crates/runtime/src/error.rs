use std::fmt;

use thiserror::Error;

use crate::BadNumber;

#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("{device} could not provide the planned {bytes} bytes: {reason}")]
    OutOfMemory { device: String, bytes: usize, reason: String },
    #[error("{device} has no kernel for {op} on {dtype}")]
    Unsupported { device: String, op: &'static str, dtype: &'static str },
    #[error("step {step} ({op}): {reason}")]
    Step { step: usize, op: &'static str, reason: String },
    #[error("{0} made a value that is not a number")]
    NotANumber(BadNumber),
    #[error("the layout does not hold: {0}")]
    Layout(#[from] plimsoll_plan::verify::Violation),
    #[error("{reason}")]
    Device { reason: String },
}

impl From<BadNumber> for RuntimeError {
    fn from(bad: BadNumber) -> Self {
        Self::NotANumber(bad)
    }
}

impl fmt::Display for BadNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, layer, .. } = self;
        match layer {
            Some(layer) => write!(f, "operator {op} of layer {layer}"),
            None => write!(f, "operator {op}"),
        }
    }
}
