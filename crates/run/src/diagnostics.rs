//! Errors of the libraries as failures of a run: the exit code, the key that caused it, and what to do.
//!
//! All that knows the libraries' error types is in this file.

use std::fmt::Display;
use std::io::ErrorKind;

use plimsoll_cuda::CudaError;
use plimsoll_data::DataError;
use plimsoll_models::ModelError;
use plimsoll_plan::{DeviceProfile, PlanError};
use plimsoll_runtime::RuntimeError;
use plimsoll_runtime::weights::WeightError;
use plimsoll_train::{Spec, TrainError};

use crate::budgets::{Capacity, Limit};
use crate::config::Resolved;
use crate::failure::{Cause, Failure, Memory, Refusal};
use crate::remedies::remedies;
use crate::units::bytes;

/// Why a run could not be prepared on a device.
pub fn unprepared(
    error: TrainError,
    spec: &Spec,
    resolved: &Resolved,
    device: &DeviceProfile,
    capacity: &Capacity,
) -> Failure {
    match &error {
        TrainError::Plan(refused @ PlanError::DoesNotFit { .. }) => {
            let failure = does_not_fit(refused, &device.name, capacity.limit.as_ref());
            remedies(spec, resolved, device).into_iter().fold(failure, Failure::hint)
        }
        _ => explained(error, resolved),
    }
}

/// The same of a model that is not trained: what lowers the memory of training is no help.
pub fn not_started(error: TrainError, resolved: &Resolved, device: &DeviceProfile, capacity: &Capacity) -> Failure {
    match &error {
        TrainError::Plan(refused @ PlanError::DoesNotFit { .. }) => {
            does_not_fit(refused, &device.name, capacity.limit.as_ref())
        }
        _ => explained(error, resolved),
    }
}

/// The failure, pointing at the value of the run that caused it where there is one.
pub fn explained(error: TrainError, resolved: &Resolved) -> Failure {
    match &error {
        TrainError::NoModel { .. }
        | TrainError::NotInCache { .. }
        | TrainError::Adapter { .. }
        | TrainError::Shape(_) => at_key(resolved, "model", &error),
        TrainError::Model(ModelError::FreezePattern(_)) => at_key(resolved, "method.freeze", &error),
        TrainError::Model(ModelError::Target { .. }) => at_key(resolved, "method.lora.targets", &error),
        TrainError::Plan(PlanError::Pin { key, .. }) => at_key(resolved, key, &error),
        TrainError::Changed(change) => at_key(resolved, change.key, &error),
        TrainError::AdapterDiffers { .. } => at_key(resolved, "init_from", &error),
        _ => error.into(),
    }
}

/// An error that may know what to do about it.
pub trait Hints: Display {
    fn hints(&self) -> Vec<String>;
}

macro_rules! hints {
    ($($error:ty => $hints:expr),+ $(,)?) => {
        $(impl Hints for $error {
            fn hints(&self) -> Vec<String> {
                let hints: fn(&$error) -> Vec<String> = $hints;
                hints(self)
            }
        })+
    };
}

hints! {
    TrainError => TrainError::hints,
    CudaError => CudaError::hints,
    // What helps depends on the run: see `unprepared`.
    PlanError => |_| Vec::new(),
    DataError => |error| error.hint().into_iter().collect(),
}

fn from_library(failure: impl FnOnce(String) -> Failure, error: &dyn Hints) -> Failure {
    error.hints().into_iter().fold(failure(error.to_string()), Failure::hint)
}

/// A library's error that a value of the run caused: exit code 2, with the value's place.
pub fn at_key(resolved: &Resolved, key: &str, error: &dyn Hints) -> Failure {
    from_library(|message| resolved.invalid(key, message), error)
}

/// What to do when a file of the run cannot be written.
fn unwritten(error: &dyn Hints, kind: ErrorKind) -> Failure {
    from_library(Failure::failed, error).hint(match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            "free some space, or choose a folder on another disk with --out"
        }
        _ => "choose a writable folder with --out",
    })
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Plan(error) => error.into(),
            TrainError::Model(_)
            | TrainError::NoModel { .. }
            | TrainError::NotInCache { .. }
            | TrainError::Adapter { .. }
            | TrainError::Shape(_)
            | TrainError::Streams { .. }
            | TrainError::Gguf { .. }
            | TrainError::NoText => from_library(Failure::config, &error),
            TrainError::Weights(WeightError::Write { ref source, .. }) | TrainError::Io { ref source, .. } => {
                unwritten(&error, source.kind())
            }
            // Between planning and allocating it, the memory went to someone else.
            TrainError::Runtime(RuntimeError::OutOfMemory { .. }) => from_library(Failure::does_not_fit, &error).hint(
                "stop the processes that hold the memory, or set a budget below the available memory with --gpu or --host",
            ),
            TrainError::Weights(WeightError::Runtime(_)) | TrainError::Runtime(_) => {
                from_library(Failure::failed, &error)
            }
            TrainError::Data(error) => error.into(),
            TrainError::Weights(_)
            | TrainError::ModelConfig { .. }
            | TrainError::NoModelConfig { .. }
            | TrainError::AdapterConfig { .. }
            | TrainError::AdapterDiffers { .. }
            | TrainError::Vocabulary { .. }
            | TrainError::LongPrompt { .. }
            | TrainError::LogitsNotANumber { .. }
            | TrainError::BaseChanged { .. }
            | TrainError::AdapterTensor { .. }
            | TrainError::NoBaseWeights { .. }
            | TrainError::Quantized { .. }
            | TrainError::StoredBase { .. }
            | TrainError::Read { .. } => {
                from_library(Failure::bad_input, &error)
            }
            TrainError::Overgrown { .. } => from_library(Failure::failed, &error),
            TrainError::Unsteady { .. } => from_library(Failure::does_not_fit, &error)
                .hint("stop the processes that take memory, or set a budget below the available memory with --gpu"),
            TrainError::Occupied { .. } | TrainError::NotARun { .. } | TrainError::InUse { .. } | TrainError::Changed(_) => {
                from_library(Failure::config, &error)
            }
            TrainError::NoSpace { .. } | TrainError::NoSpaceFor { .. } => unwritten(&error, ErrorKind::StorageFull),
            TrainError::NoSoundCheckpoint { .. } => from_library(Failure::bad_input, &error),
            TrainError::References { .. } | TrainError::NoReference => from_library(Failure::bad_input, &error)
                .hint("begin again in another folder with --out"),
            TrainError::HalfApplied { .. } => from_library(Failure::failed, &error)
                .hint("lower optimizer.lr or increase schedule.warmup, or set plan.update_in_backward: false"),
            TrainError::NotANumber { .. } | TrainError::BadGradient { .. } | TrainError::Spike { .. } => from_library(Failure::failed, &error)
                .hint("lower optimizer.lr or increase schedule.warmup; or pass over such data with guard.action: skip"),
        }
    }
}

impl From<PlanError> for Failure {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::DoesNotFit { .. } => does_not_fit(&error, "", None),
            PlanError::Unsound(_) => from_library(Failure::failed, &error),
            _ => from_library(Failure::config, &error),
        }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match error {
            // Nothing is wrong with the data.
            DataError::CacheWrite { .. } | DataError::NoSpace { .. } | DataError::Thread { .. } => {
                from_library(Failure::failed, &error)
            }
            DataError::MemoryFull { .. } => from_library(Failure::does_not_fit, &error),
            _ => from_library(Failure::bad_input, &error),
        }
    }
}

/// Where a vocabulary is trained: some errors are about what was asked for, not about what was read.
pub fn requested_vocabulary(error: DataError) -> Failure {
    match error {
        DataError::Vocabulary { .. } | DataError::UnknownTemplate { .. } => from_library(Failure::usage, &error),
        error => error.into(),
    }
}

/// Weights of sources are checked with the data, but stand in the run file.
pub fn data_sources(error: DataError, resolved: &Resolved) -> Failure {
    match error {
        DataError::Weight { .. } | DataError::SomeWeights { .. } => at_key(resolved, "data.train", &error),
        DataError::NoSuchColumn { .. } => at_key(resolved, "data.columns", &error),
        DataError::StreamBuffer { .. } => at_key(resolved, "data.buffer", &error),
        DataError::AllHeldOut { .. } => at_key(resolved, "data.eval_split", &error),
        error => error.into(),
    }
}

/// A chat template that the run file names.
pub fn data_template(error: DataError, resolved: &Resolved) -> Failure {
    let key = "data.template";
    match error {
        DataError::UnknownTemplate { .. } | DataError::NoEndOfTurn { .. } | DataError::Open { .. } => {
            at_key(resolved, key, &error)
        }
        DataError::BadTemplate { origin, reason } => resolved
            .invalid(key, format!("the chat template of {origin} cannot be compiled: {reason}"))
            .hint("correct the template"),
        error => error.into(),
    }
}

/// A GPU that was asked for by number and cannot be used.
pub fn unusable_gpu(error: &CudaError, resolved: &Resolved) -> Failure {
    match error {
        CudaError::Crowded { .. } | CudaError::OutOfMemory { .. } => from_library(Failure::does_not_fit, error)
            .hint("stop the processes that hold the memory, or choose another GPU with --device"),
        CudaError::NoSuchDevice { count, .. } => {
            let numbers: Vec<String> = (0..*count).map(|ordinal| format!("cuda:{ordinal}")).collect();
            at_key(resolved, "device", error).hint(format!("use --device {}", numbers.join(" or ")))
        }
        _ => at_key(resolved, "device", error),
    }
}

/// How far starts of one program differ in what it takes besides the arena: up to 1.3 MiB in 42 of them.
const HOST_SLACK_BYTES: u64 = 3 << 20;

/// Categories that are named in a refusal.
const PARTS_SHOWN: usize = 4;

/// The planner's name of a memory.
fn memory_of(name: &str) -> Memory {
    if name == "GPU" { Memory::Gpu } else { Memory::Host }
}

/// Names the smallest budget that works, and what it exceeds: the budget that was given, or `limit`.
fn does_not_fit(refused: &PlanError, device: &str, limit: Option<&Limit>) -> Failure {
    let PlanError::DoesNotFit { memory, budget_bytes, needed_bytes, largest, alternatives } = refused else {
        return Failure::does_not_fit(refused.to_string());
    };
    let memory = memory_of(memory);
    let (budget_bytes, needed_bytes) = (*budget_bytes, *needed_bytes);
    let limit = limit.filter(|_| memory == Memory::Gpu);
    // Rounded up, and on the host with an allowance for what the process takes more in one run than in another, so that
    // following the hint succeeds.
    let (flag, slack_bytes) = match memory {
        Memory::Gpu => ("--gpu", 0),
        Memory::Host => ("--host", HOST_SLACK_BYTES),
    };
    let mib = (needed_bytes + slack_bytes).div_ceil(1 << 20);
    let parts: Vec<String> =
        largest.iter().take(PARTS_SHOWN).map(|(name, size)| format!("{name} {}", bytes(*size))).collect();
    let of_data = largest.iter().find(|(name, _)| *name == "data").map_or(0, |(_, size)| *size);
    let against = limit.map_or_else(|| format!("the budget is {}", bytes(budget_bytes)), |limit| limit.text.clone());
    let refusal =
        Refusal { device: device.to_owned(), memory, budget_bytes, needed_bytes, alternatives: alternatives.clone() };
    let mut failure = Failure::new(
        Cause::DoesNotFit(Some(Box::new(refusal))),
        format!("does not fit: the smallest plan needs {} of {memory} memory, {against}", bytes(needed_bytes)),
    )
    .hint(format!("the smallest budget that works is {flag} {mib}MiB"))
    .hint(format!("its largest parts: {}", parts.join(", ")));
    if largest.iter().any(|(name, _)| *name == "snapshot") {
        failure = failure.hint("plan.save: between needs no memory for a snapshot of checkpoints");
    }
    if of_data > needed_bytes / 4 {
        failure = failure.hint("data.mode: cached or a smaller data.buffer takes less memory for data");
    }
    if limit.is_some_and(|limit| limit.held) {
        failure = failure.hint("or stop the processes that hold the memory; `nvidia-smi` lists them");
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Code;

    #[test]
    fn a_refusal_says_what_the_plan_exceeds() {
        let refused = PlanError::DoesNotFit {
            memory: "GPU",
            budget_bytes: 60 << 30,
            needed_bytes: 70 << 30,
            largest: vec![("weights", 70 << 30)],
            alternatives: Vec::new(),
        };
        let needs = "does not fit: the smallest plan needs 70.00 GiB of GPU memory, ";
        let given = does_not_fit(&refused, "NVIDIA H200", None);
        assert_eq!(given.message(), format!("{needs}the budget is 60.00 GiB"));
        let text = "NVIDIA H200 is shared: 60.00 GiB available".to_owned();
        let shared = does_not_fit(&refused, "NVIDIA H200", Some(&Limit { text: text.clone(), held: true }));
        assert_eq!(shared.message(), format!("{needs}{text}"));
        for failure in [&given, &shared] {
            assert_eq!(failure.code(), Code::DoesNotFit);
            assert_eq!(failure.hints[0], "the smallest budget that works is --gpu 71680MiB");
            let Cause::DoesNotFit(Some(refusal)) = &failure.cause else { panic!("{failure:?}") };
            assert_eq!((refusal.memory, refusal.needed_bytes), (Memory::Gpu, 70 << 30));
        }
        assert_eq!(shared.hints.len(), given.hints.len() + 1, "and to stop what holds the memory");
    }

    #[test]
    fn a_library_s_hints_are_hints() {
        let failure = Failure::from(TrainError::Vocabulary { tokenizer: 9, model: 8 });
        assert_eq!(failure.message(), "the tokenizer has 9 tokens, the model's vocabulary only 8");
        assert_eq!(failure.hints.len(), 1);
        let source = std::io::Error::other("gone");
        let failure = Failure::from(DataError::Open { path: "a.jsonl".into(), source });
        assert_eq!(failure.message(), "cannot read a.jsonl: gone");
        assert_eq!(failure.hints, ["check the path under `data:`"]);
    }
}
