//! What went wrong below, as an exit code and a way out.

use std::io::ErrorKind;

use plimsoll_models::ModelError;
use plimsoll_plan::PlanError;
use plimsoll_runtime::RuntimeError;
use plimsoll_runtime::weights::WeightError;
use plimsoll_train::TrainError;

use crate::config::Resolved;
use crate::error::Failure;
use crate::machine::{Limit, Room};
use crate::printer::bytes;

/// Why a run could not be prepared in the room there is.
pub fn unprepared(error: TrainError, resolved: &Resolved, room: &Room) -> Failure {
    match &error {
        TrainError::Plan(refusal @ PlanError::DoesNotFit { memory: "GPU", .. }) => {
            does_not_fit(refusal, room.limit.as_ref())
        }
        _ => explained(error, resolved),
    }
}

/// The failure, pointing at the value of the run that caused it where there is one.
pub fn explained(error: TrainError, resolved: &Resolved) -> Failure {
    let key = match &error {
        TrainError::NoModel { .. } | TrainError::Shape(_) => "model".to_owned(),
        TrainError::Model(ModelError::FreezePattern(_)) => "method.freeze".to_owned(),
        TrainError::Model(ModelError::Target { .. }) => "method.lora.targets".to_owned(),
        // The planner names the key it means first, as in "`plan.loss_chunks` is …" or "`plan.recompute.x: 3`: …".
        TrainError::Plan(PlanError::Pin(text)) => {
            let quoted = text.split('`').nth(1).unwrap_or_default();
            quoted.split(':').next().unwrap_or_default().to_owned()
        }
        _ => return error.into(),
    };
    resolved.invalid(&key, error)
}

/// What to do when a file of the run cannot be written.
fn unwritten(message: String, kind: ErrorKind) -> Failure {
    Failure::failed(message).hint(match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "free some space, or choose a folder on another disk with --out"
        }
        _ => "choose a folder that can be written with --out",
    })
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Plan(error) => error.into(),
            TrainError::Model(error) => Failure::usage(error.to_string()),
            TrainError::NoModel { .. } | TrainError::Shape(_) | TrainError::NoText => Failure::usage(error.to_string()),
            TrainError::Weights(WeightError::Write { ref source, .. }) | TrainError::Io { ref source, .. } => {
                unwritten(error.to_string(), source.kind())
            }
            // Between planning and taking it, the memory went to someone else.
            TrainError::Runtime(RuntimeError::OutOfMemory { .. }) => Failure::does_not_fit(error.to_string())
                .hint("end what holds the memory, or give a budget below what is free with --gpu or --host"),
            TrainError::Weights(WeightError::Runtime(_)) | TrainError::Runtime(_) => Failure::failed(error.to_string()),
            TrainError::Data(error) => error.into(),
            TrainError::Weights(_) | TrainError::ModelConfig { .. } | TrainError::Vocabulary { .. } => {
                Failure::bad_input(error.to_string())
            }
            TrainError::NotANumber { .. } | TrainError::BadGradient { .. } => Failure::failed(error.to_string())
                .hint("lower optimizer.lr or lengthen schedule.warmup; --paranoid names the operator where it begins"),
        }
    }
}

/// How far two runs of one program differ in what it takes besides the arena.
const HOST_SLACK_BYTES: u64 = 1 << 20;

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::DoesNotFit { .. } => does_not_fit(&error, None),
            PlanError::Unsound(_) => Failure::failed(error.to_string()),
            _ => Failure::usage(error.to_string()),
        }
    }
}

/// Names the smallest budget that works, and what stands against it: the budget that was given, or `limit`.
fn does_not_fit(refusal: &PlanError, limit: Option<&Limit>) -> Failure {
    let PlanError::DoesNotFit { memory, budget_bytes, needed_bytes, largest, .. } = refusal else {
        return Failure::does_not_fit(refusal.to_string());
    };
    let flag = if *memory == "GPU" { "--gpu" } else { "--host" };
    // Rounded up, and on the host with room for what the process takes more in one run than in another,
    // so that following the hint succeeds.
    let slack_bytes = if *memory == "GPU" { 0 } else { HOST_SLACK_BYTES };
    let mib = (needed_bytes + slack_bytes).div_ceil(1 << 20);
    let parts: Vec<String> = largest.iter().take(4).map(|(name, size)| format!("{name} {}", bytes(*size))).collect();
    let of_data = largest.iter().find(|(name, _)| *name == "data").map_or(0, |(_, size)| *size);
    let against = limit.map_or_else(|| format!("the budget is {}", bytes(*budget_bytes)), |limit| limit.words.clone());
    let mut failure = Failure::does_not_fit(format!(
        "does not fit: the smallest plan needs {} of {memory} memory, {against}",
        bytes(*needed_bytes)
    ))
    .hint(format!("the smallest budget that works is {flag} {mib}MiB"))
    .hint(format!("it consists of {}", parts.join(", ")))
    .hint("a smaller model, method: lora, or a shorter data.max_length need less");
    if of_data > needed_bytes / 4 {
        failure = failure.hint("data.mode: cached, or a smaller data.buffer, need less for data");
    }
    if limit.is_some_and(|limit| limit.held) {
        failure = failure.hint("or end what holds the memory; `nvidia-smi` lists it");
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_stands_against_the_plan() {
        let refusal = PlanError::DoesNotFit {
            memory: "GPU",
            budget_bytes: 60 << 30,
            needed_bytes: 70 << 30,
            largest: vec![("weights", 70 << 30)],
            alternatives: Vec::new(),
        };
        let needs = "does not fit: the smallest plan needs 70.00 GiB of GPU memory, ";
        let given = does_not_fit(&refusal, None);
        assert_eq!(given.message, format!("{needs}the budget is 60.00 GiB"));
        let words = "NVIDIA H200 is shared: 60.00 GiB can be had now".to_owned();
        let shared = does_not_fit(&refusal, Some(&Limit { words: words.clone(), held: true }));
        assert_eq!(shared.message, format!("{needs}{words}"));
        for failure in [&given, &shared] {
            assert_eq!(failure.code as u8, 3);
            assert_eq!(failure.hints[0], "the smallest budget that works is --gpu 71680MiB");
        }
        assert_eq!(shared.hints.len(), given.hints.len() + 1, "and to end what holds the memory");
    }
}
