use thiserror::Error;

#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("{device} could not provide the planned {bytes} bytes: {reason}")]
    OutOfMemory { device: String, bytes: usize, reason: String },
    #[error("{device} has no kernel for {op} on {dtype}")]
    Unsupported { device: String, op: &'static str, dtype: &'static str },
    #[error("step {step} ({op}): {reason}")]
    Step { step: usize, op: &'static str, reason: String },
    #[error("{reason}")]
    Device { reason: String },
}
