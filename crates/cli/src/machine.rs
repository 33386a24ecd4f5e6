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

/// Budgets to plan with.
pub struct Room {
    pub budgets: Budgets,
    /// What to say before anything runs: the card cannot give all of its budget.
    pub note: Option<String>,
    /// What limits a plan on the card, where that is not the budget.
    pub limit: Option<Limit>,
}

pub struct Limit {
    pub words: String,
    /// Whether other processes hold what is lacking.
    pub held: bool,
}

/// The budgets of a run. They are ceilings: of a card that is here, no more is planned on than it can give now.
pub fn room(resolved: &Resolved, device: &DeviceProfile, card: Option<&Card>) -> Room {
    let mut budgets = budgets(resolved, device);
    let asked_bytes = budgets.gpu_bytes;
    let limit = card.and_then(|card| limit(device, card, asked_bytes));
    if card.is_some() {
        budgets.gpu_bytes = asked_bytes.min(device.memory_bytes);
    }
    let is_cut = budgets.gpu_bytes < asked_bytes;
    let note = limit.as_ref().filter(|_| is_cut).map(|limit| format!("{}; planned for what can be had", limit.words));
    Room { budgets, note, limit }
}

/// Why a card gives no more than it does, where a budget asks for all that can be had, or for more.
fn limit(profile: &DeviceProfile, card: &Card, budget_bytes: u64) -> Option<Limit> {
    let available_bytes = profile.memory_bytes;
    let (name, budget) = (&profile.name, bytes(budget_bytes));
    let asked = if budget_bytes > card.total_bytes {
        format!("a budget of {budget} is more than {name} has, {}", bytes(card.total_bytes))
    } else if budget_bytes > available_bytes {
        format!("{name} cannot give {budget}")
    } else if budget_bytes == available_bytes && !card.others.is_empty() {
        format!("{name} is shared")
    } else {
        return None;
    };
    let available = format!("{asked}: {} can be had now", bytes(available_bytes));
    let who = match card.others.as_slice() {
        // The driver's own share is no process's.
        [] if budget_bytes > card.total_bytes => return Some(Limit { words: available, held: false }),
        [] => "processes that the driver does not name".to_owned(),
        others => describe_holders(others),
    };
    let held = bytes(card.total_bytes.saturating_sub(available_bytes));
    Some(Limit { words: format!("{available}, {held} are held by {who}"), held: true })
}

/// A device to plan for.
pub struct Planned {
    pub profile: DeviceProfile,
    /// Lines to show first.
    pub notes: Vec<String>,
    /// If it is a card that is here.
    pub card: Option<Card>,
}

/// The device to plan for; a card from the table need not be here.
pub fn planned(resolved: &Resolved, anew: bool) -> Result<Planned, Failure> {
    let name = &resolved.run.device;
    let Named::Card = named(name) else {
        let Present { profile, notes, card, .. } = present(resolved, anew)?;
        return Ok(Planned { profile, notes, card });
    };
    let known = known_device(name).ok_or_else(|| {
        resolved
            .invalid("device", format!("device `{name}` is not in the table"))
            .hint(format!("known are {}", device_names().join(", ")))
    })?;
    Ok(Planned { profile: in_mode(known, resolved.run.mode), notes: Vec::new(), card: None })
}

fn budgets(resolved: &Resolved, device: &DeviceProfile) -> Budgets {
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
    use crate::config::{Overrides, Source, load};

    const GIB: u64 = 1 << 30;

    fn h200(available_gib: u64) -> DeviceProfile {
        let profile = known_device("H200").expect("in the table");
        DeviceProfile { memory_bytes: available_gib * GIB, ..profile }
    }

    fn card(others: &[Holder]) -> Card {
        Card { total_bytes: 140 * GIB, others: others.to_vec() }
    }

    fn python() -> Holder {
        Holder { pid: 4711, name: Some("python".into()), bytes: Some(79 * GIB) }
    }

    #[test]
    fn a_budget_that_cannot_be_had_names_who_holds_the_memory() {
        let check = |others: &[Holder], gib: u64, expected: Option<(&str, bool)>| {
            let said = limit(&h200(60), &card(others), gib * GIB);
            assert_eq!(said.as_ref().map(|limit| (limit.words.as_str(), limit.held)), expected);
        };
        let shared = [python()];
        let held = "60.00 GiB can be had now, 80.00 GiB are held by python (pid 4711) with 79.00 GiB";
        check(&shared, 59, None);
        check(&[], 60, None);
        check(&shared, 60, Some((&format!("NVIDIA H200 is shared: {held}"), true)));
        check(&shared, 61, Some((&format!("NVIDIA H200 cannot give 61.00 GiB: {held}"), true)));
        let unnamed = "60.00 GiB can be had now, 80.00 GiB are held by processes that the driver does not name";
        check(&[], 140, Some((&format!("NVIDIA H200 cannot give 140.00 GiB: {unnamed}"), true)));
        let more = "a budget of 141.00 GiB is more than NVIDIA H200 has, 140.00 GiB: 60.00 GiB can be had now";
        check(&[], 141, Some((more, false)));
    }

    /// A budget is a ceiling: where less can be had, that is planned on, and said; a card of the table has no limit.
    #[test]
    fn what_can_be_had_is_planned_on() {
        let check = |gpu: &str, available_gib: u64, card: Option<&Card>, planned_gib: u64, is_said: bool| {
            let text = format!("model: tiny\nmemory: {{gpu: {gpu}}}\n");
            let resolved = load(Source::Embedded { name: "run.yaml", text: &text }, &Overrides::default()).unwrap();
            let room = room(&resolved, &h200(available_gib), card);
            assert_eq!((room.budgets.gpu_bytes / GIB, room.note.is_some()), (planned_gib, is_said), "{gpu}");
        };
        let shared = card(&[python()]);
        check("61GiB", 60, Some(&shared), 60, true);
        check("200GiB", 60, Some(&shared), 60, true);
        check("60GiB", 60, Some(&shared), 60, false);
        check("auto", 60, Some(&shared), 60, false);
        check("50%", 60, Some(&shared), 30, false);
        check("61GiB", 60, None, 61, false);
    }
}
