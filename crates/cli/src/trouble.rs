//! What went wrong below, as an exit code and a way out.

use std::io::ErrorKind;

use plimsoll_models::ModelError;
use plimsoll_plan::PlanError;
use plimsoll_runtime::RuntimeError;
use plimsoll_runtime::weights::WeightError;
use plimsoll_train::TrainError;

use crate::config::Resolved;
use crate::error::Failure;
use crate::printer::bytes;

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
        let PlanError::DoesNotFit { memory, budget_bytes, needed_bytes, largest, .. } = error else {
            return match error {
                PlanError::Unsound(_) => Failure::failed(error.to_string()),
                _ => Failure::usage(error.to_string()),
            };
        };
        let flag = if memory == "GPU" { "--gpu" } else { "--host" };
        // Rounded up, and on the host with room for what the process takes more in one run than in another,
        // so that following the hint succeeds.
        let slack_bytes = if memory == "GPU" { 0 } else { HOST_SLACK_BYTES };
        let mib = (needed_bytes + slack_bytes).div_ceil(1 << 20);
        let parts: Vec<String> =
            largest.iter().take(4).map(|(name, size)| format!("{name} {}", bytes(*size))).collect();
        let of_data = largest.iter().find(|(name, _)| *name == "data").map_or(0, |(_, size)| *size);
        let mut failure = Failure::does_not_fit(format!(
            "does not fit: the smallest plan needs {} of {memory} memory, the budget is {}",
            bytes(needed_bytes),
            bytes(budget_bytes)
        ))
        .hint(format!("the smallest budget that works is {flag} {mib}MiB"))
        .hint(format!("it consists of {}", parts.join(", ")))
        .hint("a smaller model, method: lora, or a shorter data.max_length need less");
        if of_data > needed_bytes / 4 {
            failure = failure.hint("data.mode: cached, or a smaller data.buffer, need less for data");
        }
        failure
    }
}
