use plimsoll_runtime::RuntimeError;
use thiserror::Error;

const GIB: f64 = (1u64 << 30) as f64;

/// A library that was looked for and not found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    pub what: &'static str,
    /// The names it was looked for under.
    pub names: &'static [&'static str],
    /// How to get it.
    pub hint: &'static str,
}

#[derive(Debug, Error)]
pub enum CudaError {
    #[error("{}", describe_missing(missing, searched))]
    Missing { missing: Vec<Missing>, searched: Vec<std::path::PathBuf> },
    #[error("no NVIDIA GPU is visible: {reason}\nhint: check `nvidia-smi` and CUDA_VISIBLE_DEVICES")]
    NoDevice { reason: String },
    #[error("GPU {ordinal} does not exist; there {} visible", if *count == 1 { "is 1".to_owned() } else { format!("are {count}") })]
    NoSuchDevice { ordinal: usize, count: usize },
    #[error(
        "the NVIDIA driver supports CUDA {}.{} at most, at least {}.{} is needed\nhint: install driver 525 or newer",
        found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10
    )]
    DriverTooOld { found: i32, needed: i32 },
    #[error("{name} has compute capability {}.{}; 8.0 (Ampere) is the least that is supported", capability.0, capability.1)]
    CardTooOld { name: String, capability: (u32, u32) },
    #[error("kernels/{module}.cu does not compile for {arch}:\n{log}")]
    Compile { module: String, arch: String, log: String },
    #[error("NVRTC: {0}")]
    Nvrtc(String),
    #[error("{call}: {reason}")]
    Driver { call: String, reason: String },
    #[error("cuBLASLt: {call}: {reason}")]
    Blas { call: &'static str, reason: String },
    #[error("{name} could not provide {:.2} GiB: {:.2} of {:.2} GiB are free ({reason})\nhint: `nvidia-smi` shows who else uses the card", *bytes as f64 / GIB, *free as f64 / GIB, *total as f64 / GIB)]
    OutOfMemory { name: String, bytes: usize, free: usize, total: usize, reason: String },
}

fn describe_missing(missing: &[Missing], searched: &[std::path::PathBuf]) -> String {
    let mut text = String::from("CUDA libraries are missing:");
    for Missing { what, names, hint } in missing {
        text += &format!("\n  {what} ({}): {hint}", names.join(", "));
    }
    text +=
        "\nhint: searched the system's library path, CUDA_HOME, the active Python environment and PLIMSOLL_CUDA_PATH";
    if !searched.is_empty() {
        let searched: Vec<String> = searched.iter().map(|path| path.display().to_string()).collect();
        text += &format!(" ({})", searched.join(", "));
    }
    text
}

impl From<CudaError> for RuntimeError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::OutOfMemory { name, bytes, free, total, reason } => RuntimeError::OutOfMemory {
                device: name,
                bytes,
                reason: format!("{free} of {total} bytes are free ({reason})"),
            },
            other => RuntimeError::Device { reason: other.to_string() },
        }
    }
}

/// What the driver says about a failed call, in words.
pub(crate) fn driver_error(call: impl Into<String>) -> impl FnOnce(cudarc::driver::DriverError) -> CudaError {
    move |error| CudaError::Driver { call: call.into(), reason: reason(error) }
}

pub(crate) fn reason(error: cudarc::driver::DriverError) -> String {
    match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(text)) => format!("{} ({})", text.to_string_lossy(), name.to_string_lossy()),
        _ => format!("{:?}", error.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_libraries_say_how_to_get_them() {
        let missing = Missing { what: "NVRTC", names: &["libnvrtc.so.13"], hint: "pip install nvidia-cuda-nvrtc" };
        let text = CudaError::Missing { missing: vec![missing], searched: vec!["/opt/cuda".into()] }.to_string();
        assert!(text.contains("NVRTC (libnvrtc.so.13): pip install nvidia-cuda-nvrtc"), "{text}");
        assert!(text.contains("/opt/cuda"), "{text}");
    }
}
