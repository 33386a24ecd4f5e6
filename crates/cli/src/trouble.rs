//! What went wrong below, as an exit code and a way out.

use plimsoll_plan::PlanError;
use plimsoll_train::TrainError;

use crate::error::Failure;
use crate::printer::bytes;

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Plan(error) => error.into(),
            TrainError::Model(error) => Failure::usage(error.to_string()),
            TrainError::Model404(text) => Failure::usage(text),
            TrainError::Weights(_) | TrainError::Data(_) | TrainError::Vocabulary { .. } => {
                Failure::bad_input(error.to_string())
            }
            TrainError::Io { ref source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists => {
                Failure::usage(error.to_string()).hint("the folder already holds a run; choose another with --out")
            }
            TrainError::NotANumber { .. } | TrainError::BadGradient { .. } => Failure::failed(error.to_string())
                .hint("lower optimizer.lr or lengthen schedule.warmup; --paranoid names the operator where it begins"),
            TrainError::Runtime(_) | TrainError::Io { .. } => Failure::failed(error.to_string()),
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        let PlanError::DoesNotFit { memory, budget_bytes, needed_bytes, largest, .. } = error else {
            return match error {
                PlanError::Unsound(_) => Failure::failed(error.to_string()),
                _ => Failure::usage(error.to_string()),
            };
        };
        let flag = if memory == "GPU" { "--gpu" } else { "--host" };
        // Rounded up, so that following the hint succeeds.
        let mib = needed_bytes.div_ceil(1 << 20);
        let parts: Vec<String> =
            largest.iter().take(4).map(|(name, size)| format!("{name} {}", bytes(*size))).collect();
        Failure::does_not_fit(format!(
            "does not fit: the smallest plan needs {} of {memory} memory, the budget is {}",
            bytes(needed_bytes),
            bytes(budget_bytes)
        ))
        .hint(format!("the smallest budget that works is {flag} {mib}MiB"))
        .hint(format!("it consists of {}", parts.join(", ")))
        .hint("a smaller model, method: lora, or a shorter data.max_length need less")
    }
}
