//! What would make a run fit that does not: changes of the run, each planned, with the memory it then needs.

use plimsoll_graph::StateStorage;
use plimsoll_models::{Built, Lora, Targets, parameter_groups};
use plimsoll_plan::{Backing, Budgets, Chosen, DeviceProfile, Fixed, Goal, PlanError};
use plimsoll_train::{Inference, Spec, TrainError, plan_inference, plan_only};

use crate::base;
use crate::config::{Method, Resolved};
use crate::units::bytes;

/// A change that saves less than this part is not worth naming.
const SAVED_MIN: f64 = 0.05;
/// Remedies named at most, those that save most first.
const REMEDIES_MAX: usize = 3;

/// The shortest sequences that are proposed.
const MAX_LENGTH_MIN: usize = 128;

/// Each as a sentence for a hint.
pub fn remedies(spec: &Spec, resolved: &Resolved, device: &DeviceProfile) -> Vec<String> {
    let changes = changes(spec, resolved, device);
    // Each change in a thread of its own, beside the run as it is.
    let (needed, least) = std::thread::scope(|scope| {
        let planned = changes.iter().map(|(_, changed)| scope.spawn(move || smallest_bytes(changed, device)));
        let planned: Vec<_> = planned.collect();
        let needed = smallest_bytes(spec, device);
        let least = planned.into_iter().map(|planned| planned.join().expect("planning does not panic"));
        (needed, least.collect::<Vec<Option<u64>>>())
    });
    let Some(needed) = needed else { return Vec::new() };
    let planned = changes.into_iter().zip(least);
    let mut found: Vec<(u64, String)> = planned.filter_map(|((change, _), least)| Some((least?, change))).collect();
    found.retain(|(bytes, _)| (*bytes as f64) < needed as f64 * (1.0 - SAVED_MIN));
    found.sort();
    found.truncate(REMEDIES_MAX);
    let saved =
        |(least, change): (u64, String)| format!("{change} needs {}, {} less", bytes(least), bytes(needed - least));
    found.into_iter().map(saved).collect()
}

/// The run with one thing changed, and how a user would change it.
fn changes(spec: &Spec, resolved: &Resolved, device: &DeviceProfile) -> Vec<(String, Spec)> {
    let mut changes = Vec::new();
    if let Method::Full { .. } = resolved.run.method {
        let mut changed = spec.clone();
        changed.recipe.lora =
            Some(Lora { r: 16, alpha: 32.0, dropout: 0.0, targets: Targets::AllLinear, rslora: false });
        changed.recipe.freeze.clear();
        changes.extend(in_fewer_bits(&changed, device, |format| format!("method: lora with base: {format}")));
        changes.push(("method: lora".to_owned(), changed));
    }
    let optimizer = &resolved.run.optimizer;
    for (word, state) in [("bf16", StateStorage::Bfloat16), ("int8", StateStorage::Int8)] {
        if optimizer.state.word() == word {
            continue;
        }
        let Ok(groups) = parameter_groups(&optimizer.described_groups(state), &optimizer.rest(state)) else {
            continue;
        };
        let mut changed = spec.clone();
        changed.recipe.groups = groups;
        changed.recipe.master = false;
        changes.push((format!("optimizer.state: {word}"), changed));
    }
    if spec.recipe.lora.is_some() {
        changes.extend(in_fewer_bits(spec, device, |format| format!("base: {format}")));
    }
    let shorter = spec.max_length / 2;
    if shorter >= MAX_LENGTH_MIN {
        changes.push((format!("data.max_length: {shorter}"), Spec { max_length: shorter, ..spec.clone() }));
    }
    changes
}

/// The run with its base in formats that take less.
fn in_fewer_bits(spec: &Spec, device: &DeviceProfile, named: fn(&str) -> String) -> Vec<(String, Spec)> {
    let formats = base::smaller(spec, device).into_iter().filter(|format| base::applies(spec, *format));
    let stored = formats.map(|format| {
        let mut changed = spec.clone();
        base::set(&mut changed.recipe, Some(format), device);
        (named(format.name()), changed)
    });
    stored.collect()
}

/// What a model that does not fit would take with its base in fewer bits, each as a sentence for a hint.
pub fn inference_remedies(spec: &Spec, inference: Inference, device: &DeviceProfile) -> Vec<String> {
    let smallest = |spec: &Spec| needed(plan_inference(spec, inference, device, none(device), besides(device)));
    let Some(whole) = smallest(spec) else { return Vec::new() };
    let planned = |(_, changed): (String, Spec)| {
        let format = changed.recipe.base?.name();
        let least = smallest(&changed)?;
        Some(format!("--base {format} needs {}, {} less", bytes(least), bytes(whole.saturating_sub(least))))
    };
    in_fewer_bits(spec, device, |format| format!("base: {format}")).into_iter().filter_map(planned).collect()
}

/// What the smallest plan takes of the memory the device computes in.
fn smallest_bytes(spec: &Spec, device: &DeviceProfile) -> Option<u64> {
    let spec = Spec { goal: Goal::Lowest, ..spec.clone() };
    needed(plan_only(&spec, device, none(device), besides(device)))
}

/// No budget at all, so that a refusal names the smallest one that would do.
fn none(device: &DeviceProfile) -> Budgets {
    match device.backing {
        Backing::Gpu => Budgets { gpu_bytes: 0, host_bytes: u64::MAX },
        Backing::Host => Budgets { gpu_bytes: 0, host_bytes: 0 },
    }
}

fn besides(device: &DeviceProfile) -> Fixed {
    Fixed { gpu_context_bytes: device.context_bytes, host_process_bytes: device.host_process_bytes, host_data_bytes: 0 }
}

fn needed(refused: Result<Chosen<Built>, TrainError>) -> Option<u64> {
    match refused {
        Err(TrainError::Plan(PlanError::DoesNotFit { needed_bytes, .. })) => Some(needed_bytes),
        _ => None,
    }
}
