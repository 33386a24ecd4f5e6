//! The device a run is planned for or runs on, and the budgets on it.

use plimsoll_cpu::CpuBackend;
use plimsoll_cuda::{CudaBackend, CudaError};
use plimsoll_plan::{Backing, Budgets, DeviceProfile, device_names, known_device};
use plimsoll_runtime::Backend;
use plimsoll_train::host_available_bytes;

use crate::config::{Budget, Mode, Resolved};
use crate::error::Failure;

/// A device that is here.
pub struct Present {
    pub backend: Box<dyn Backend>,
    pub profile: DeviceProfile,
}

/// Of what is available, the part an automatic budget takes; the rest is for whoever else runs here.
const AUTO_SHARE: f64 = 0.9;
/// What the driver takes besides once schedules are recorded and the last kernels are loaded.
const RECORDING_BYTES: u64 = 192 << 20;

/// What stands in `device`.
enum Named {
    Auto,
    Cpu,
    Cuda(usize),
    Card,
}

fn named(name: &str) -> Named {
    match name {
        "auto" => Named::Auto,
        "cpu" => Named::Cpu,
        "cuda" => Named::Cuda(0),
        _ => name.strip_prefix("cuda:").and_then(|n| n.parse().ok()).map_or(Named::Card, Named::Cuda),
    }
}

/// The CPU, with its rates measured.
fn cpu() -> Result<Present, Failure> {
    let backend = CpuBackend::new(None);
    let rates = plimsoll_cpu::measure(None).map_err(|e| Failure::failed(e.to_string()))?;
    let profile = DeviceProfile::cpu(
        backend.threads(),
        host_available_bytes(),
        rates.matmul_flops_per_s,
        rates.attention_flops_per_s,
        rates.vector_bytes_per_s,
    );
    Ok(Present { backend: Box::new(backend), profile })
}

/// A card that is here, with what its driver already takes.
fn cuda(ordinal: usize, mode: Mode) -> Result<Present, CudaError> {
    let mut backend = CudaBackend::new(ordinal)?;
    if mode == Mode::Eager {
        backend = backend.eager();
    }
    let memory = backend.memory()?;
    let mut profile = known_device(backend.name()).unwrap_or_else(DeviceProfile::unknown_gpu);
    profile.name = backend.name().to_owned();
    profile.memory_bytes = memory.total_bytes as u64;
    profile.context_bytes = (memory.total_bytes - memory.free_bytes) as u64 + RECORDING_BYTES;
    profile.target = backend.target();
    Ok(Present { backend: Box::new(backend), profile })
}

/// The device to run on.
pub fn present(resolved: &Resolved) -> Result<Present, Failure> {
    let name = &resolved.run.device;
    let mode = resolved.run.mode;
    match named(name) {
        Named::Cpu => cpu(),
        Named::Auto => cuda(0, mode).or_else(|_| cpu()),
        Named::Cuda(ordinal) => cuda(ordinal, mode).map_err(|e| resolved.invalid("device", e)),
        Named::Card => Err(resolved
            .invalid(
                "device",
                format!("device `{name}` cannot run anything: it is a name, not a device of this machine"),
            )
            .hint("use --device cpu or --device cuda:0; `plimsoll plan` plans for any card in its table")),
    }
}

/// The device to plan for; a card from the table need not be here.
pub fn planned(resolved: &Resolved) -> Result<DeviceProfile, Failure> {
    let name = &resolved.run.device;
    match named(name) {
        Named::Card => known_device(name).ok_or_else(|| {
            resolved
                .invalid("device", format!("device `{name}` is not in the table"))
                .hint(format!("known are {}", device_names().join(", ")))
        }),
        _ => Ok(present(resolved)?.profile),
    }
}

pub fn budgets(resolved: &Resolved, device: &DeviceProfile) -> Budgets {
    let memory = &resolved.run.memory;
    let host_free = host_available_bytes();
    let of = |budget: &Budget, free: u64, auto: f64| match budget {
        Budget::Auto => (free as f64 * auto) as u64,
        other => other.bytes_of(free),
    };
    let gpu_bytes = match device.backing {
        Backing::Gpu => of(&memory.gpu, device.memory_bytes, 1.0),
        Backing::Host => 0,
    };
    Budgets { gpu_bytes, host_bytes: of(&memory.host, host_free, AUTO_SHARE) }
}
