use plimsoll_runtime::RuntimeError;
use thiserror::Error;

use crate::nvml::Holder;

const GIB: f64 = (1u64 << 30) as f64;

/// What the driver is called among the libraries.
pub(crate) const DRIVER: &str = "NVIDIA driver";

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
    #[error("{}", describe_missing(missing))]
    Missing { missing: Vec<Missing>, searched: Vec<std::path::PathBuf> },
    #[error("no NVIDIA GPU is visible: {reason}")]
    NoDevice { reason: String },
    #[error("GPU {ordinal} does not exist; there {} visible", if *count == 1 { "is 1".to_owned() } else { format!("are {count}") })]
    NoSuchDevice { ordinal: usize, count: usize },
    #[error(
        "the NVIDIA driver supports CUDA {}.{} at most, at least {}.{} is needed",
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
    #[error("{name} could not provide {}: {} of {} are free ({reason}){}", gib(*bytes), gib(*free), gib(*total), holding(others))]
    OutOfMemory { name: String, bytes: usize, free: usize, total: usize, reason: String, others: Vec<Holder> },
    /// Not even the driver itself found room.
    #[error("the GPU is full: {call} found no memory{}", holding(others))]
    Crowded { call: String, others: Vec<Holder> },
}

impl CudaError {
    /// What to do about it.
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Missing { searched, .. } => vec![describe_search(searched)],
            Self::NoDevice { .. } => vec!["check `nvidia-smi` and CUDA_VISIBLE_DEVICES".to_owned()],
            Self::DriverTooOld { .. } => vec!["install driver 525 or newer".to_owned()],
            _ => Vec::new(),
        }
    }

    /// The reason in one line, without what to do about it.
    pub fn brief(&self) -> String {
        match self {
            CudaError::Missing { missing, .. } => {
                // Without a driver there is no card, and nobody wants to hear of its libraries.
                let driver = missing.iter().find(|missing| missing.what == DRIVER).map(|driver| vec![driver.what]);
                let names = driver.unwrap_or_else(|| missing.iter().map(|missing| missing.what).collect());
                format!("no {} was found", names.join(" and no "))
            }
            other => other.to_string().lines().next().unwrap_or_default().trim_end_matches(':').to_owned(),
        }
    }
}

fn gib(bytes: usize) -> String {
    format!("{:.2} GiB", bytes as f64 / GIB)
}

/// Processes that are named in a message.
const HOLDERS_SHOWN: usize = 4;

/// Who holds how much, as the end of a sentence; empty where nobody is known.
fn holding(others: &[Holder]) -> String {
    if others.is_empty() { String::new() } else { format!("; in use by {}", describe_holders(others)) }
}

/// Such as `python (pid 4711) with 12.00 GiB, pid 4712`.
pub fn describe_holders(holders: &[Holder]) -> String {
    let describe = |Holder { pid, name, bytes }: &Holder| {
        let who = name.as_ref().map_or(format!("pid {pid}"), |name| format!("{name} (pid {pid})"));
        bytes.map_or(who.clone(), |bytes| format!("{who} with {}", gib(bytes as usize)))
    };
    let mut shown: Vec<String> = holders.iter().take(HOLDERS_SHOWN).map(describe).collect();
    if holders.len() > HOLDERS_SHOWN {
        shown.push(format!("{} more", holders.len() - HOLDERS_SHOWN));
    }
    shown.join(", ")
}

fn describe_missing(missing: &[Missing]) -> String {
    let mut text = String::from("CUDA libraries are missing:");
    for Missing { what, names, hint } in missing {
        text += &format!("\n  {what} ({}): {hint}", names.join(", "));
    }
    text
}

fn describe_search(searched: &[std::path::PathBuf]) -> String {
    let mut text =
        "searched the system's library path, CUDA_HOME, the active Python environment and PLIMSOLL_CUDA_PATH"
            .to_owned();
    if !searched.is_empty() {
        let searched: Vec<String> = searched.iter().map(|path| path.display().to_string()).collect();
        text += &format!(" ({})", searched.join(", "));
    }
    text
}

impl From<CudaError> for RuntimeError {
    fn from(error: CudaError) -> Self {
        match error {
            CudaError::OutOfMemory { name, bytes, free, total, reason, others } => RuntimeError::OutOfMemory {
                device: name,
                bytes,
                reason: format!("{} of {} are free ({reason}){}", gib(free), gib(total), holding(&others)),
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
        let error = CudaError::Missing { missing: vec![missing], searched: vec!["/opt/cuda".into()] };
        let text = error.to_string();
        assert!(text.contains("NVRTC (libnvrtc.so.13): pip install nvidia-cuda-nvrtc"), "{text}");
        assert!(error.hints()[0].contains("/opt/cuda"), "{:?}", error.hints());
    }

    #[test]
    fn holders_are_named_as_far_as_they_are_known() {
        let holder = |pid, name: Option<&str>, bytes| Holder { pid, name: name.map(str::to_owned), bytes };
        let mut holders = vec![holder(4711, Some("python"), Some(12 << 30)), holder(9, None, None)];
        assert_eq!(describe_holders(&holders), "python (pid 4711) with 12.00 GiB, pid 9");
        holders.extend((0..4).map(|pid| holder(pid, None, Some(1 << 30))));
        assert!(describe_holders(&holders).ends_with("pid 1 with 1.00 GiB, 2 more"), "{}", describe_holders(&holders));
        let full = CudaError::OutOfMemory {
            name: "NVIDIA H200".into(),
            bytes: 3 << 30,
            free: 1 << 30,
            total: 140 << 30,
            reason: "the plan needs more".into(),
            others: holders[..1].to_vec(),
        };
        assert_eq!(
            full.to_string(),
            "NVIDIA H200 could not provide 3.00 GiB: 1.00 GiB of 140.00 GiB are free (the plan needs more); \
             in use by python (pid 4711) with 12.00 GiB"
        );
    }

    #[test]
    fn reasons_fit_on_a_line() {
        let missing = |what| Missing { what, names: &["x.so"], hint: "install it" };
        let absent = |missing: Vec<Missing>| CudaError::Missing { missing, searched: Vec::new() }.brief();
        assert_eq!(absent(vec![missing(DRIVER), missing("NVRTC")]), "no NVIDIA driver was found");
        assert_eq!(absent(vec![missing("NVRTC"), missing("cuBLASLt")]), "no NVRTC and no cuBLASLt was found");
        let no_device = CudaError::NoDevice { reason: "the driver lists none".into() };
        let old = CudaError::DriverTooOld { found: 11_080, needed: 12_000 };
        assert_eq!(old.brief(), "the NVIDIA driver supports CUDA 11.8 at most, at least 12.0 is needed");
        assert_eq!(no_device.brief(), "no NVIDIA GPU is visible: the driver lists none");
    }
}
