//! The memory budgets of a run on a device.

use plimsoll_cuda::describe_holders;
use plimsoll_plan::{Backing, Budgets, DeviceProfile, PlanError};
use plimsoll_train::{TrainError, host_available_bytes, peak_resident_bytes};

use crate::config::{Budget, Resolved};
use crate::device::{Card, Device};
use crate::note::Note;
use crate::units::bytes;

/// Of what is available, the part an automatic budget takes; the rest is for whoever else runs here.
const AUTO_FRACTION: f64 = 0.9;

/// Budgets to plan with.
pub struct Capacity {
    pub budgets: Budgets,
    /// Where the device or the machine cannot provide all of a budget.
    pub notes: Vec<Note>,
    /// What limits a plan on the GPU, where that is not the budget.
    pub limit: Option<Limit>,
}

/// Why a GPU provides less than it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub text: String,
    /// Whether other processes hold the rest.
    pub held: bool,
}

/// Refuses what this process took more for than the budget, if only for a moment, to measure the machine or to plan: no plan
/// undoes it.
pub fn held<T>(started: Result<T, TrainError>, budgets: Budgets) -> Result<T, TrainError> {
    let peak_bytes = peak_resident_bytes();
    match started {
        Err(TrainError::Plan(PlanError::DoesNotFit { memory, budget_bytes, needed_bytes, largest, alternatives })) => {
            let needed_bytes = if memory == "host" { needed_bytes.max(peak_bytes) } else { needed_bytes };
            Err(PlanError::DoesNotFit { memory, budget_bytes, needed_bytes, largest, alternatives }.into())
        }
        Ok(_) if peak_bytes > budgets.host_bytes => Err(PlanError::DoesNotFit {
            memory: "host",
            budget_bytes: budgets.host_bytes,
            needed_bytes: peak_bytes,
            largest: vec![("process", peak_bytes)],
            alternatives: Vec::new(),
        }
        .into()),
        started => started,
    }
}

/// The budgets of a run. They are ceilings: on a GPU of this machine, no more is planned for than is available now.
pub fn capacity(resolved: &Resolved, device: &Device) -> Capacity {
    let (device, card) = (&device.profile, device.card.as_ref());
    let asked = budgets(resolved, device);
    let mut budgets = asked;
    let limit = match card {
        Some(card) => limit(device, card, asked.gpu_bytes),
        None => beyond_card(device, asked.gpu_bytes),
    };
    if device.backing == Backing::Gpu {
        budgets.gpu_bytes = asked.gpu_bytes.min(device.memory_bytes);
    }
    let mut notes: Vec<Note> = Vec::new();
    if budgets.gpu_bytes < asked.gpu_bytes {
        notes.extend(limit.clone().map(Note::LessAvailable));
    }
    // Nothing is known of the machine around a card that is not here.
    if device.backing == Backing::Host || card.is_some() {
        let available_bytes = host_available_bytes();
        budgets.host_bytes = asked.host_bytes.min(available_bytes);
        if budgets.host_bytes < asked.host_bytes {
            let (asked, available) = (bytes(asked.host_bytes), bytes(available_bytes));
            let text = format!("the budget of {asked} exceeds this machine's memory: {available} available");
            notes.push(Note::LessAvailable(Limit { text, held: false }));
        }
    }
    Capacity { budgets, notes, limit }
}

/// A budget that no card of this name has.
fn beyond_card(profile: &DeviceProfile, budget_bytes: u64) -> Option<Limit> {
    let (name, has) = (&profile.name, bytes(profile.memory_bytes));
    let exceeds = profile.backing == Backing::Gpu && budget_bytes > profile.memory_bytes;
    let text = format!("the budget of {} exceeds the {has} of {name}", bytes(budget_bytes));
    exceeds.then_some(Limit { text, held: false })
}

/// Why a GPU provides no more than it does, where a budget asks for all that is available, or for more.
fn limit(profile: &DeviceProfile, card: &Card, budget_bytes: u64) -> Option<Limit> {
    let available_bytes = profile.memory_bytes;
    let (name, budget) = (&profile.name, bytes(budget_bytes));
    let asked = if budget_bytes > card.total_bytes {
        format!("the budget of {budget} exceeds the {} of {name}", bytes(card.total_bytes))
    } else if budget_bytes > available_bytes {
        format!("{name} cannot provide {budget}")
    } else if budget_bytes == available_bytes && !card.others.is_empty() {
        format!("{name} is shared")
    } else {
        return None;
    };
    let available = format!("{asked}: {} available", bytes(available_bytes));
    let who = match card.others.as_slice() {
        // The driver's own share is no process's.
        [] if budget_bytes > card.total_bytes => return Some(Limit { text: available, held: false }),
        [] => "processes that the driver does not name".to_owned(),
        others => describe_holders(others),
    };
    let held = bytes(card.total_bytes.saturating_sub(available_bytes));
    Some(Limit { text: format!("{available}, {held} held by {who}"), held: true })
}

fn budgets(resolved: &Resolved, device: &DeviceProfile) -> Budgets {
    let memory = &resolved.run.memory;
    let host_free = host_available_bytes();
    let (gpu_bytes, host) = match device.backing {
        Backing::Gpu => (memory.gpu.bytes_of(device.memory_bytes), memory.host.gpu),
        Backing::Host => (0, memory.host.cpu),
    };
    let host_bytes = match host {
        Budget::Auto => (host_free as f64 * AUTO_FRACTION) as u64,
        given => given.bytes_of(host_free),
    };
    Budgets { gpu_bytes, host_bytes }
}

#[cfg(test)]
mod tests {
    use plimsoll_cuda::Holder;
    use plimsoll_plan::known_device;

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
    fn a_budget_above_the_available_memory_names_who_holds_the_rest() {
        let check = |others: &[Holder], gib: u64, expected: Option<(&str, bool)>| {
            let said = limit(&h200(60), &card(others), gib * GIB);
            assert_eq!(said.as_ref().map(|limit| (limit.text.as_str(), limit.held)), expected);
        };
        let shared = [python()];
        let held = "60.00 GiB available, 80.00 GiB held by python (pid 4711) with 79.00 GiB";
        check(&shared, 59, None);
        check(&[], 60, None);
        check(&shared, 60, Some((&format!("NVIDIA H200 is shared: {held}"), true)));
        check(&shared, 61, Some((&format!("NVIDIA H200 cannot provide 61.00 GiB: {held}"), true)));
        let unnamed = "60.00 GiB available, 80.00 GiB held by processes that the driver does not name";
        check(&[], 140, Some((&format!("NVIDIA H200 cannot provide 140.00 GiB: {unnamed}"), true)));
        let more = "the budget of 141.00 GiB exceeds the 140.00 GiB of NVIDIA H200: 60.00 GiB available";
        check(&[], 141, Some((more, false)));
    }

    /// A budget is a ceiling: where less is available, or the card has less, that is planned for, and said.
    #[test]
    fn plans_are_for_the_available_memory() {
        let check = |gpu: &str, available_gib: u64, card: Option<Card>, planned_gib: u64, is_said: bool| {
            let text = format!("model: tiny\nmemory: {{gpu: {gpu}}}\n");
            let resolved = load(Source::Embedded { name: "run.yaml", text: &text }, &Overrides::default()).unwrap();
            let device = Device { profile: h200(available_gib), notes: Vec::new(), card };
            let capacity = capacity(&resolved, &device);
            assert_eq!((capacity.budgets.gpu_bytes / GIB, !capacity.notes.is_empty()), (planned_gib, is_said), "{gpu}");
        };
        let shared = || Some(card(&[python()]));
        check("61GiB", 60, shared(), 60, true);
        check("200GiB", 60, shared(), 60, true);
        check("60GiB", 60, shared(), 60, false);
        check("auto", 60, shared(), 60, false);
        check("50%", 60, shared(), 30, false);
        check("61GiB", 60, None, 60, true);
        check("59GiB", 60, None, 59, false);
    }
}
