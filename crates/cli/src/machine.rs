//! The device a run is planned for or runs on, and the budgets on it.

use std::time::Instant;

use plimsoll_cpu::CpuBackend;
use plimsoll_cuda::{CudaBackend, CudaError, Holder, describe_holders};
use plimsoll_plan::{Backing, Budgets, DeviceProfile, device_names, known_device};
use plimsoll_runtime::{Backend, Counted, Used};
use plimsoll_train::host_available_bytes;

use crate::config::{Budget, Mode, Resolved};
use crate::error::Failure;
use crate::printer::{bytes, duration};

/// A device that is here.
pub struct Present {
    pub backend: Box<dyn Backend>,
    pub profile: DeviceProfile,
    /// Lines to show before anything else happens.
    pub notes: Vec<String>,
    /// A card's whole memory, and who else has some of it.
    pub card: Option<Card>,
}

pub struct Card {
    total_bytes: u64,
    others: Vec<Holder>,
}

/// Of what is available, the part an automatic budget takes; the rest is for whoever else runs here.
const AUTO_SHARE: f64 = 0.9;
/// What libraries may load later of their own code, where it was not measured.
const LATE_BYTES: u64 = 192 << 20;
/// The driver hands out whole pages: the arena's last one, and one for what it keeps itself.
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
    let rates = plimsoll_cpu::measure(None).map_err(|e| Failure::failed(e.to_string()))?;
    let profile = DeviceProfile::cpu(
        backend.threads(),
        host_available_bytes(),
        rates.matmul_flops_per_s,
        rates.attention_flops_per_s,
        rates.vector_bytes_per_s,
    );
    Ok(Present { backend: Box::new(backend), profile, notes: Vec::new(), card: None })
}

/// A card that is here, with what its driver already takes and its own rates. With `anew`, these are measured again.
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
        notes.push(format!("GPU memory in use is counted for the {}", counted_words(used.counted)));
    }
    let mut profile = known_device(backend.name()).unwrap_or_else(DeviceProfile::unknown_gpu);
    let began = Instant::now();
    let mut late_bytes = LATE_BYTES;
    match backend.profile(anew) {
        Ok(measured) => {
            late_bytes = measured.rates.late_bytes;
            profile = profile.with_measured(measured.rates);
            let kept = measured.file.map_or(String::new(), |file| format!(" and kept in {}", file.display()));
            if measured.fresh {
                let took = duration(began.elapsed());
                notes.push(format!("{} was measured in {took}{kept}; --remeasure does so again", backend.name()));
            }
        }
        Err(error) => notes.push(format!("the card could not be measured ({error}); times are estimates from a table")),
    }
    profile.name = backend.name().to_owned();
    profile.memory_bytes = match used.counted {
        Counted::Device => total_bytes,
        // The driver keeps some for itself, which one figure counts and the other does not.
        _ => (memory.free_bytes as u64 + used.bytes).min(total_bytes),
    };
    profile.context_bytes = used.bytes + late_bytes + PAGES_BYTES;
    profile.target = backend.target();
    profile = in_mode(profile, mode);
    let card = Some(Card { total_bytes, others: backend.others() });
    Ok(Present { backend: Box::new(backend), profile, notes, card })
}

/// The first card that works; where none does, why the first one does not.
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

fn counted_words(counted: Counted) -> &'static str {
    match counted {
        Counted::Process => "process alone",
        Counted::SinceStart => "whole card since the start: the driver does not tell it by process",
        Counted::Device => "whole card, other processes included: there is no NVML",
    }
}

/// The device to run on. With `anew`, a card's rates are measured again.
pub fn present(resolved: &Resolved, anew: bool) -> Result<Present, Failure> {
    let name = &resolved.run.device;
    let mode = resolved.run.mode;
    match named(name) {
        Named::Cpu => cpu(),
        Named::Auto => first_card(mode, anew).or_else(|error| {
            let mut present = cpu()?;
            present.notes.push(format!("running on the CPU: {}", error.brief()));
            Ok(present)
        }),
        Named::Cuda(ordinal) => cuda(ordinal, mode, anew).map_err(|error| unusable(resolved, error)),
        Named::Card => Err(resolved
            .invalid(
                "device",
                format!("device `{name}` cannot run anything: it is a name, not a device of this machine"),
            )
            .hint("use --device cpu or --device cuda:0; `plimsoll plan` plans for any card in its table")),
    }
}

/// A card that was asked for by number and cannot be had.
fn unusable(resolved: &Resolved, error: CudaError) -> Failure {
    match error {
        CudaError::Crowded { .. } | CudaError::OutOfMemory { .. } => Failure::does_not_fit(error.to_string())
            .hint("end what holds the memory, or take another card with --device"),
        CudaError::NoSuchDevice { count, .. } => {
            let numbers: Vec<String> = (0..count).map(|ordinal| format!("cuda:{ordinal}")).collect();
            resolved.invalid("device", error).hint(format!("use --device {}", numbers.join(" or ")))
        }
        _ => resolved.invalid("device", error),
    }
}

/// A budget that others have left no room for is refused before anything is planned on it.
pub fn check_budget(resolved: &Resolved, present: &Present, budgets: &Budgets) -> Result<(), Failure> {
    let Some(card) = &present.card else { return Ok(()) };
    over_budget(&present.profile, card, budgets.gpu_bytes).map_or(Ok(()), |(message, hints)| {
        let place = resolved.invalid("memory.gpu", message).message;
        Err(hints.into_iter().fold(Failure::does_not_fit(place), Failure::hint))
    })
}

/// What to say where a card cannot give the budget now, and what to do.
fn over_budget(profile: &DeviceProfile, card: &Card, budget_bytes: u64) -> Option<(String, Vec<String>)> {
    let available_bytes = profile.memory_bytes;
    if budget_bytes <= available_bytes {
        return None;
    }
    let largest = format!("the largest budget that works now is --gpu {}MiB", available_bytes >> 20);
    let (name, budget, available) = (&profile.name, bytes(budget_bytes), bytes(available_bytes));
    if budget_bytes > card.total_bytes {
        let message = format!("a budget of {budget} is more than {name} has: {}", bytes(card.total_bytes));
        return Some((message, vec![largest]));
    }
    let held = bytes(card.total_bytes.saturating_sub(available_bytes));
    let who = match card.others.as_slice() {
        [] => "processes that the driver does not name".to_owned(),
        others => describe_holders(others),
    };
    let message = format!("{name} cannot give {budget}: {available} can be had now, {held} are held by {who}");
    Some((message, vec![largest, "or end what holds the memory; `nvidia-smi` lists it".to_owned()]))
}

/// The device to plan for, with lines to show first; a card from the table need not be here.
pub fn planned(resolved: &Resolved, anew: bool) -> Result<(DeviceProfile, Vec<String>), Failure> {
    let name = &resolved.run.device;
    match named(name) {
        Named::Card => {
            known_device(name).map(|device| (in_mode(device, resolved.run.mode), Vec::new())).ok_or_else(|| {
                resolved
                    .invalid("device", format!("device `{name}` is not in the table"))
                    .hint(format!("known are {}", device_names().join(", ")))
            })
        }
        _ => present(resolved, anew).map(|present| (present.profile, present.notes)),
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

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_budget_that_cannot_be_had_names_who_holds_the_memory() {
        let mut profile = known_device("H200").expect("in the table");
        profile.memory_bytes = 60 * GIB;
        let holder = Holder { pid: 4711, name: Some("python".into()), bytes: Some(79 * GIB) };
        let card = |others: &[Holder]| Card { total_bytes: 140 * GIB, others: others.to_vec() };
        let check = |others: &[Holder], gib: u64, expected: Option<&str>| {
            let said = over_budget(&profile, &card(others), gib * GIB);
            assert_eq!(said.as_ref().map(|(message, _)| message.as_str()), expected);
            let largest = "the largest budget that works now is --gpu 61440MiB";
            assert!(said.is_none_or(|(_, hints)| hints[0] == largest));
        };
        let shared = std::slice::from_ref(&holder);
        check(shared, 60, None);
        check(
            shared,
            61,
            Some(
                "NVIDIA H200 cannot give 61.00 GiB: 60.00 GiB can be had now, 80.00 GiB are held by python (pid 4711) \
                 with 79.00 GiB",
            ),
        );
        check(
            &[],
            140,
            Some(
                "NVIDIA H200 cannot give 140.00 GiB: 60.00 GiB can be had now, 80.00 GiB are held by processes that \
                 the driver does not name",
            ),
        );
        check(shared, 141, Some("a budget of 141.00 GiB is more than NVIDIA H200 has: 140.00 GiB"));
    }
}
