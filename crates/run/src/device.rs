//! The device a run is planned for or runs on.

use std::time::Instant;

use plimsoll_cpu::CpuBackend;
use plimsoll_cuda::{CudaBackend, CudaError, Holder};
use plimsoll_plan::{
    DeviceProfile, Figures, device_names, gpu_profile, is_too_old, known_device, present_device, similar_devices,
};
use plimsoll_runtime::{Backend, Counted, Used};
use plimsoll_train::host_available_bytes;

use crate::config::{DeviceChoice, Mode, Resolved};
use crate::diagnostics::unusable_gpu;
use crate::failure::Failure;
use crate::note::Note;

/// A device to plan for.
pub struct Device {
    pub profile: DeviceProfile,
    pub notes: Vec<Note>,
    /// Of a GPU of this machine.
    pub card: Option<Card>,
}

/// A device of this machine, ready to run on.
pub struct Present {
    pub backend: Box<dyn Backend>,
    pub device: Device,
}

/// A GPU's whole memory, and which other processes hold some of it.
pub struct Card {
    pub total_bytes: u64,
    pub others: Vec<Holder>,
}

/// What libraries may load later of their own code, where it was not measured.
const LATE_BYTES: u64 = 192 << 20;
/// The driver allocates whole pages: the arena's last one, and one for its own use.
const PAGES_BYTES: u64 = 2 * (2 << 20);

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
    let rates = plimsoll_cpu::measure(None).map_err(|error| Failure::failed(error.to_string()))?;
    let profile = DeviceProfile::cpu(
        backend.threads(),
        host_available_bytes(),
        rates.matmul_flops_per_s,
        rates.attention_flops_per_s,
        rates.vector_bytes_per_s,
    );
    Ok(Present { backend: Box::new(backend), device: Device { profile, notes: Vec::new(), card: None } })
}

/// A GPU of this machine, with what its driver already takes and its own rates. With `anew`, these are measured again.
fn cuda(ordinal: usize, mode: Mode, anew: bool) -> Result<Present, CudaError> {
    let mut backend = CudaBackend::new(ordinal)?;
    if mode == Mode::Eager {
        backend = backend.eager();
    }
    let memory = backend.memory()?;
    let total_bytes = memory.total_bytes as u64;
    let all = Used { bytes: total_bytes - memory.free_bytes as u64, counted: Counted::Device };
    let used = backend.used().unwrap_or(all);
    let mut notes = Vec::new();
    if used.counted != Counted::Process {
        notes.push(Note::CountedFor(used.counted));
    }
    let mut profile = present_device(backend.name(), total_bytes).unwrap_or_else(DeviceProfile::unknown_gpu);
    let began = Instant::now();
    let mut late_bytes = LATE_BYTES;
    match backend.profile(anew) {
        Ok(measured) => {
            late_bytes = measured.rates.late_bytes;
            profile = profile.with_measured(measured.rates);
            if measured.fresh {
                let gpu = backend.name().to_owned();
                notes.push(Note::Measured { gpu, took: began.elapsed(), file: measured.file });
            }
        }
        Err(error) => notes.push(Note::NotMeasured { gpu: backend.name().to_owned(), reason: error.to_string() }),
    }
    profile.name = backend.name().to_owned();
    profile.memory_bytes = match used.counted {
        Counted::Device => total_bytes,
        // The driver keeps some for itself, which one figure counts and the other does not.
        _ => (memory.free_bytes as u64 + used.bytes).min(total_bytes),
    };
    profile.context_bytes = used.bytes + late_bytes + PAGES_BYTES;
    profile.traits = backend.traits();
    profile = in_mode(profile, mode);
    let card = Some(Card { total_bytes, others: backend.others() });
    Ok(Present { backend: Box::new(backend), device: Device { profile, notes, card } })
}

/// The first GPU that works; where none does, why the first one does not.
fn first_card(mode: Mode, anew: bool) -> Result<Present, CudaError> {
    let first = match cuda(0, mode, anew) {
        // Without a driver, its libraries or a visible card there is no second one to try.
        Err(error @ (CudaError::CardTooOld { .. } | CudaError::Crowded { .. } | CudaError::Driver { .. })) => error,
        answer => return answer,
    };
    for ordinal in 1.. {
        match cuda(ordinal, mode, anew) {
            Err(CudaError::NoSuchDevice { .. }) => break,
            Err(_) => {}
            present => return present,
        }
    }
    Err(first)
}

/// Running step by step, a card records nothing.
fn in_mode(device: DeviceProfile, mode: Mode) -> DeviceProfile {
    DeviceProfile { records: device.records && mode != Mode::Eager, ..device }
}

/// The device to run on. With `anew`, a card's rates are measured again.
pub fn present(resolved: &Resolved, anew: bool) -> Result<Present, Failure> {
    let mode = resolved.run.mode;
    let DeviceChoice::Named(name) = &resolved.run.device else {
        return Err(resolved
            .invalid("device", "`device` describes a GPU to plan for, not one of this machine")
            .hint("use --device cpu or --device cuda:0"));
    };
    match named(name) {
        Named::Cpu => cpu(),
        Named::Auto => first_card(mode, anew).or_else(|error| {
            let mut present = cpu()?;
            present.device.notes.push(Note::OnCpu { reason: error.brief() });
            Ok(present)
        }),
        Named::Cuda(ordinal) => cuda(ordinal, mode, anew).map_err(|error| unusable_gpu(&error, resolved)),
        Named::Card => Err(resolved
            .invalid("device", format!("`{name}` is not a device of this machine"))
            .hint("use --device cpu or --device cuda:0; `plimsoll plan` accepts any GPU in its table")),
    }
}

/// The device to plan for; a GPU from the table need not be in this machine.
pub fn planned(resolved: &Resolved, anew: bool) -> Result<Device, Failure> {
    let profile = match &resolved.run.device {
        DeviceChoice::Named(name) => match named(name) {
            Named::Card => known_device(name).ok_or_else(|| unknown_card(name, resolved))?,
            _ => return present(resolved, anew).map(|present| present.device),
        },
        DeviceChoice::Figures(figures) => gpu_profile(&Figures {
            name: figures.name.clone().unwrap_or_else(|| "GPU".to_owned()),
            memory_bytes: figures.memory_bytes,
            product_flops_per_s: figures.tflops * 1e12,
            // Cards with tensor cores have at least this much beside them.
            product32_flops_per_s: figures.tflops * 1e12 / 8.0,
            product8_flops_per_s: None,
            memory_bytes_per_s: figures.bandwidth_bytes_per_s as f64,
            bus_bytes_per_s: BUS_BYTES_PER_S,
        }),
    };
    Ok(Device { profile: in_mode(profile, resolved.run.mode), notes: Vec::new(), card: None })
}

/// What a card in an ordinary slot exchanges with the host, each way, where nobody says.
const BUS_BYTES_PER_S: f64 = 24e9;

fn unknown_card(name: &str, resolved: &Resolved) -> Failure {
    if is_too_old(name) {
        let message = format!("`{name}` is below compute capability 8.0, which the kernels need");
        return resolved.invalid("device", message).hint("GPUs from Ampere on work: RTX 30, A100 and newer");
    }
    let failure = resolved.invalid("device", format!("unknown device `{name}`"));
    let similar = similar_devices(name);
    let failure = match similar.as_slice() {
        [] => failure.hint(format!("expected cpu, cuda:N or one of: {}", device_names().join(", "))),
        similar => failure.hint(format!("did you mean {}?", similar.join(" or "))),
    };
    failure.hint("any other GPU: device: {memory: 8GiB, tflops: 40, bandwidth: 400GB/s}")
}
