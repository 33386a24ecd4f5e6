//! A model's loss and metrics over a dataset, in the memory of a forward pass.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use plimsoll_graph::DType;
use plimsoll_models::Recipe;
use plimsoll_plan::{Goal, Pins, PlanError, Report};
use plimsoll_train::{
    AdapterFolder, DataMemory, Evaluation, Inference, Model, Prepared, Spec, TextComparison, TrainError,
    peak_resident_bytes, plan_inference, prepare_inference,
};

use crate::artifact::Artifact;
use crate::base;
use crate::budgets::{capacity, held};
use crate::config::Resolved;
use crate::data::{self, Context};
use crate::device::{self, Present};
use crate::diagnostics::not_started;
use crate::failure::Failure;
use crate::note::Note;
use crate::observer::Observer;
use crate::prepare::Measured;
use crate::remedies::inference_remedies;
use crate::spec::{compute, task};
use crate::text::beside;

/// What came of it.
pub struct Evaluated {
    pub evaluation: Evaluation,
    /// The task's name.
    pub task: &'static str,
    /// Of the weights, and of the adapter if there is one.
    pub model: PathBuf,
    pub adapter: Option<PathBuf>,
    pub report: Report,
    pub measured: Measured,
    pub notes: Vec<Note>,
}

/// Evaluates what `model` stands for as the run says: its task, on its evaluation data.
pub fn evaluate(
    resolved: &Resolved,
    model: &str,
    adapter: Option<&Path>,
    paranoid: bool,
    observer: &mut dyn Observer,
) -> Result<Evaluated, Failure> {
    let artifact = Artifact::find(model, adapter)?;
    let task = task(resolved, &artifact.model)?;
    if task.head().has_reference() && artifact.adapter.is_none() {
        return Err(resolved
            .invalid("task", format!("`task: {}` compares with the model without its adapters", task.name()))
            .hint("evaluate adapters with --adapter, or the model by another task, as in --task sft"));
    }
    let Present { backend, device } = device::present(resolved, false)?;
    let capacity = capacity(resolved, &device);
    let (host_bytes, now) = (capacity.budgets.host_bytes, SystemTime::now());
    let context = Context { resolved, out: Path::new("runs/eval"), host_bytes, now };
    let (dataset, tokenizer, formats) = data::open_eval(&context, &artifact, &*task, observer)?;
    let Artifact { model, adapter } = artifact;
    let mut spec = Spec {
        recipe: recipe(adapter.as_ref(), compute(resolved, &device.profile)?),
        sequences: task.group(),
        tokens: None,
        max_length: resolved.run.data.max_length as usize,
        goal: Goal::Fastest,
        pins: Pins::default(),
        seed: resolved.run.seed,
        model,
        task,
    };
    let footprint = dataset.footprint();
    let feed_bytes = |capacity| footprint.sequential_bytes(capacity);
    let held_bytes = footprint.resident_bytes;
    let memory = DataMemory { resident_bytes: held_bytes, held_bytes, feed_bytes: &feed_bytes };
    let rows = resolved.run.eval.bleu_rows;
    let inference = Inference::Evaluate { text: spec.task.compares_texts() && rows > 0 };
    let plan =
        |spec: &Spec| plan_inference(spec, inference, &device.profile, capacity.budgets, beside(&device.profile));
    let fits = |spec: &Spec| plan(spec).map(|_| ());
    let base = base::of_inference(&mut spec, resolved, adapter.as_ref(), &device.profile, &fits)?;
    let prepared = prepare_inference(&spec, inference, backend, &device.profile, capacity.budgets, &memory, paranoid);
    let Prepared { mut session, report, .. } = held(prepared, capacity.budgets).map_err(|error| {
        let too_large = matches!(error, TrainError::Plan(PlanError::DoesNotFit { .. }));
        let mut failure = not_started(error, resolved, &device.profile, &capacity);
        if too_large {
            failure = inference_remedies(&spec, inference, &device.profile).into_iter().fold(failure, Failure::hint);
            failure = failure.hint("a shorter data.max_length takes less memory");
        }
        failure
    })?;
    if let Some(adapter) = &adapter {
        session.load_adapters(&adapter.path)?;
    } else if session.has_new_head() {
        return Err(Failure::bad_input(format!(
            "{} has no head for `task: {}`, so there is nothing to evaluate",
            spec.model.name(),
            spec.task.name()
        ))
        .hint("evaluate a model or an adapter that was trained for the task, or set --task"));
    }
    session.compare_texts(TextComparison { tokenizer, rows });
    let evaluation = session.evaluate(&dataset)?;
    let gpu = session.executor().backend().used();
    let mut notes = device.notes;
    notes.extend(capacity.notes);
    notes.extend(base);
    notes.extend(formats.into_iter().map(Note::Format));
    Ok(Evaluated {
        evaluation,
        task: spec.task.name(),
        model: named(&spec.model),
        adapter: adapter.map(|adapter| adapter.path),
        report,
        measured: Measured { host_bytes: Some(peak_resident_bytes()), gpu_bytes: gpu.map(|used| used.bytes) },
        notes,
    })
}

fn recipe(adapter: Option<&AdapterFolder>, compute: DType) -> Recipe {
    Recipe::forward_only(adapter.map(|adapter| adapter.lora.clone()), compute)
}

fn named(model: &Model) -> PathBuf {
    model.folder().map_or_else(|| PathBuf::from(model.name()), Path::to_owned)
}
