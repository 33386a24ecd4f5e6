//! The device a run is planned for or runs on, and the budgets on it.

use plimsoll_cpu::CpuBackend;
use plimsoll_plan::{Backing, Budgets, DeviceProfile, device_names, known_device};
use plimsoll_runtime::Backend;
use plimsoll_train::host_available_bytes;

use crate::config::{Budget, Resolved};
use crate::error::Failure;

/// A device that is here.
pub struct Present {
    pub backend: Box<dyn Backend>,
    pub profile: DeviceProfile,
}

/// Of what is available, the part an automatic budget takes; the rest is for whoever else runs here.
const AUTO_SHARE: f64 = 0.9;

fn is_cpu(name: &str) -> bool {
    matches!(name, "auto" | "cpu")
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

/// The device to run on.
pub fn present(resolved: &Resolved) -> Result<Present, Failure> {
    let name = &resolved.run.device;
    if is_cpu(name) {
        return cpu();
    }
    Err(resolved
        .invalid("device", format!("device `{name}` cannot run anything here: this version computes on the CPU"))
        .hint("use --device cpu; `plimsoll plan` plans for any card in its table"))
}

/// The device to plan for; it need not be here.
pub fn planned(resolved: &Resolved) -> Result<DeviceProfile, Failure> {
    let name = &resolved.run.device;
    if is_cpu(name) {
        return Ok(cpu()?.profile);
    }
    known_device(name).ok_or_else(|| {
        resolved
            .invalid("device", format!("device `{name}` is not in the table"))
            .hint(format!("known are {}", device_names().join(", ")))
    })
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
