use thiserror::Error;

#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("{device} could not provide the planned {bytes} bytes: {reason}")]
    OutOfMemory { device: String, bytes: usize, reason: String },
    #[error("{device} has no kernel for {op} on {dtype}")]
    Unsupported { device: String, op: &'static str, dtype: &'static str },
    #[error("step {step} ({op}): {reason}")]
    Step { step: usize, op: &'static str, reason: String },
    #[error("step {step} ({op}{}) made a value that is not a number", layer.map(|l| format!(", layer {l}")).unwrap_or_default())]
    NotANumber { step: usize, op: &'static str, layer: Option<u32> },
    #[error("the layout does not hold: {0}")]
    Layout(#[from] plimsoll_plan::verify::Violation),
    #[error("{reason}")]
    Device { reason: String },
}
