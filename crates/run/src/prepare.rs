//! From a resolved run to something that can be trained, benched or shown.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime};

use plimsoll_data::{Amount, Capacity, Dataset};
use plimsoll_models::{Built, Recipe};
use plimsoll_plan::{Backing, Budgets, Chosen, DeviceProfile, Fixed, Goal, Picture, Report};
use plimsoll_train::{
    BadUpdate, BenchReport, BestBy, DataMemory, Effect, Event, Fit, GenerationReport, Guard, Holds, Inference,
    Language, LearningRate, ModelOrigin, OperatorTime, Outcome, Preparation, Prepared, Process, Resume, RunFolder,
    Saving, Seq2Seq, Session, Spec, Task, TextComparison, TrainError, Watching, bench, bench_generation, fit, next_gib,
    peak_resident_bytes, plan_inference, plan_run, prepare_inference, prepare_watched, profile, profile_generation,
    reference_bytes,
};

use crate::base;
use crate::budgets::{capacity, held};
use crate::config::{BaseFormat, GuardAction, Length, Resolved, RunConfig};
use crate::data::{self, Context, RunData, RunFootprint};
use crate::device::{self, Device, Present};
use crate::diagnostics::{explained, not_started, unprepared};
use crate::failure::Failure;
use crate::folder::{Claimed, Continue, RUNS, claim};
use crate::note::Note;
use crate::observer::{self, Observer};
use crate::samples::{self, Sample};
use crate::schedule::{learning_rate, total_updates};
use crate::spec::{check_weights, spec};
use crate::text;
use crate::units::seconds;
use crate::warning;

/// What is about this call and not about the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// The run file, whose name the run takes where it has none.
    pub run_file: Option<&'a Path>,
    /// Measure the GPU again.
    pub remeasure: bool,
    /// Poison freed memory and re-check the layout while running.
    pub paranoid: bool,
    /// What is to be done about a run that the folder already holds.
    pub resume: Continue,
}

/// A plan, with nothing allocated.
pub struct PlannedRun {
    pub report: Report,
    pub picture: Picture,
    /// Of the whole run, where that is known without its data.
    pub updates: Option<u64>,
    pub notes: Vec<Note>,
}

impl PlannedRun {
    /// What the whole run should take, evaluation and saving not counted.
    pub fn total_s(&self) -> Option<f64> {
        self.updates.map(|updates| updates as f64 * self.report.predicted.step_ms / 1e3)
    }
}

/// A run ready to train.
pub struct PreparedRun {
    pub session: Session,
    pub report: Report,
    /// What lies where; for whoever draws it, who should take it: it is memory that training has no use for.
    pub picture: Option<Picture>,
    pub data: RunData,
    pub notes: Vec<Note>,
    /// Updates of the whole run.
    pub updates: u64,
    pub rate: LearningRate,
    /// Where it is written, until it begins.
    folder: Option<RunFolder>,
    resume: Option<Resume>,
    began: SystemTime,
    amount: Amount,
    best: Option<BestBy>,
    run: RunConfig,
    run_yaml: String,
}

/// A run ready to be timed on synthetic tokens.
pub struct PreparedBench {
    pub notes: Vec<Note>,
    prepared: Prepared,
    profile: DeviceProfile,
    sequences: usize,
    lr: f64,
}

/// A model ready to be timed on one text.
pub struct PreparedGeneration {
    pub notes: Vec<Note>,
    prepared: Prepared,
    profile: DeviceProfile,
    prompt_tokens: usize,
    new_tokens: usize,
}

/// The memory in use at its peak, as far as it is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    pub gpu_bytes: Option<u64>,
    pub host_bytes: Option<u64>,
}

/// Plans a run for a device that need not be in this machine.
pub fn plan(resolved: &Resolved, options: Options<'_>) -> Result<PlannedRun, Failure> {
    let device = device::planned(resolved, options.remeasure)?;
    let mut spec = spec(resolved, &device.profile)?;
    let capacity = capacity(resolved, &device);
    let beside = Beside::find(resolved, &spec, &device, capacity.budgets);
    let Device { profile, mut notes, .. } = device;
    notes.extend(beside.note.clone());
    let fits = |spec: &Spec| beside.plan(spec, &profile, capacity.budgets).map(|_| ());
    notes.extend(base::settle(&mut spec, resolved, &profile, &fits)?);
    let planned = beside.plan(&spec, &profile, capacity.budgets);
    let planned = if beside.process == Process::Measured { held(planned, capacity.budgets) } else { planned };
    let (chosen, fixed) = planned.map_err(|error| unprepared(error, &spec, resolved, &profile, &capacity))?;
    notes.extend(capacity.notes);
    notes.extend(of_model(resolved, &spec));
    notes.extend(of_plan(&chosen.report));
    let next_gib = match spec.goal {
        Goal::Fastest => next_gib(&spec, &profile, capacity.budgets, fixed)?,
        Goal::Lowest => Vec::new(),
    };
    let picture = chosen.picture(&profile);
    let report = Report { next_gib, ..chosen.report };
    // The length of a run in epochs depends on its data.
    let updates = match resolved.run.schedule.length() {
        Length::Steps(updates) => Some(updates),
        Length::Epochs(_) => None,
    };
    Ok(PlannedRun { report, picture, updates, notes })
}

/// What a run is planned beside: its data, as far as that is known without reading it, and the process.
pub(crate) struct Beside {
    footprint: Option<RunFootprint>,
    process: Process,
    /// Why the data is not counted, if it cannot be.
    pub note: Option<Note>,
}

impl Beside {
    pub fn find(resolved: &Resolved, spec: &Spec, device: &Device, budgets: Budgets) -> Self {
        let out = resolved.run.out.clone().unwrap_or_else(|| Path::new(RUNS).join("run"));
        let now = SystemTime::now();
        let context = Context { resolved, out: &out, host_bytes: budgets.host_bytes, now };
        let (footprint, note) = match data::forecast(&context, &spec.model, &*spec.task) {
            Ok(footprint) => (footprint, None),
            Err(failure) => (None, Some(Note::DataNotCounted { reason: failure.message() })),
        };
        let Device { profile, card, .. } = device;
        let is_here = card.is_some() || profile.backing == Backing::Host;
        let process = if is_here { Process::Measured } else { Process::Stated(profile.host_process_bytes) };
        Self { footprint, process, note }
    }

    pub fn plan(
        &self,
        spec: &Spec,
        profile: &DeviceProfile,
        budgets: Budgets,
    ) -> Result<(Chosen<Built>, Fixed), TrainError> {
        let (footprint, amount) = (self.footprint, spec.amount());
        let feed_bytes = |capacity| footprint.map_or(0, |footprint| footprint.feed_bytes(amount, capacity));
        let memory = footprint.map_or_else(DataMemory::none, |footprint| footprint.memory(&feed_bytes));
        plan_run(spec, profile, budgets, &memory, self.process)
    }
}

/// Opens the data, plans with the process measured, allocates the memory and loads the weights.
pub fn prepare(resolved: &Resolved, options: Options<'_>, observer: &mut dyn Observer) -> Result<PreparedRun, Failure> {
    let Claimed { folder, resume, holds } = claim(resolved, options.run_file, options.resume)?;
    let Present { backend, device } = device::present(resolved, options.remeasure)?;
    let mut spec = spec(resolved, &device.profile)?;
    check_weights(resolved, &spec.model)?;
    let capacity = capacity(resolved, &device);
    let Device { profile, mut notes, .. } = device;
    // The seconds that a checkpoint keeps.
    let began = resume.as_ref().and_then(Resume::began).unwrap_or_else(SystemTime::now);
    let context = Context { resolved, out: folder.path(), host_bytes: capacity.budgets.host_bytes, now: began };
    let data = data::open(&context, &spec.model, &*spec.task, observer)?;
    let best = best_by(resolved, &data, &*spec.task)?;
    spec.model.name_end_token(data.tokenizer.eos_id());
    let (tokenizer, model) = (data.tokenizer.vocab_size(), spec.model.config.vocab_size);
    if tokenizer > model {
        return Err(TrainError::Vocabulary { tokenizer, model }.into());
    }
    let amount = spec.amount();
    let references = if spec.needs_references() { references(resolved, &data)? } else { None };
    let footprint = data.footprint();
    let feed_bytes = |capacity: Capacity| {
        // A number for each token travels with a micro-batch.
        let beside = references.map_or(0, |bytes| bytes + (capacity.main().tokens * size_of::<f32>()) as u64);
        footprint.feed_bytes(amount, capacity) + beside
    };
    let memory = footprint.memory(&feed_bytes);
    let fits = |spec: &Spec| plan_run(spec, &profile, capacity.budgets, &memory, Process::Measured).map(|_| ());
    match &resume {
        // `auto` stays what it was.
        Some(resume) if resolved.run.base == Some(BaseFormat::Auto) => {
            base::set(&mut spec.recipe, resume.base_format(), &profile);
        }
        _ => notes.extend(base::settle(&mut spec, resolved, &profile, &fits)?),
    }
    if let Some(resume) = &resume {
        keep_bits(&mut spec, resume, &profile, capacity.budgets, &memory);
    }
    // Before the process is measured, because it stays.
    let counts_bytes = spec.task.reports_bits_per_byte() && data.eval.is_some();
    let byte_lengths = if counts_bytes { data.tokenizer.byte_lengths() } else { Vec::new() };
    let updates = total_updates(&resolved.run, &data.train, amount);
    let rate = learning_rate(&resolved.run, updates);
    notes.extend(capacity.notes.iter().cloned());
    notes.extend(of_model(resolved, &spec));
    notes.extend(data.notes());
    let warnings = warning::of_run(&resolved.run, amount, &rate, &data.train, data.eval.as_ref());
    notes.extend(warnings.into_iter().map(Note::Warning));
    let mut planned = None;
    let mut watch = |preparation: Preparation<'_>| match preparation {
        Preparation::Planned(report) => {
            planned = of_plan(report);
            let notes: Vec<Note> = notes.iter().cloned().chain(planned.clone()).collect();
            observer.observe(observer::Event::Planned { report, notes: &notes });
        }
        Preparation::Weights { done_bytes, total_bytes } => {
            observer.observe(observer::Event::Weights { done_bytes, total_bytes });
        }
    };
    let Prepared { mut session, report, picture } = held(
        prepare_watched(&spec, backend, &profile, capacity.budgets, &memory, options.paranoid, &mut watch),
        capacity.budgets,
    )
    .map_err(|error| unprepared(error, &spec, resolved, &profile, &capacity))?;
    notes.extend(planned);
    session.set_byte_lengths(byte_lengths);
    let (tokenizer, rows) = (data.tokenizer.clone(), resolved.run.eval.bleu_rows);
    session.compare_texts(TextComparison { tokenizer, rows });
    // What a checkpoint holds has come from there, and it may be gone by now.
    if let (Some(folder), None) = (&resolved.run.init_from, &resume) {
        session.load_adapters(folder).map_err(|error| explained(error, resolved))?;
    }
    if session.has_new_head() {
        notes.push(Note::NewHead);
    }
    match &resume {
        Some(resume) => check_resume(resolved, resume, options.resume, holds, (&mut session, amount, &rate))?,
        None if holds == Holds::Unfinished => notes.push(Note::BegunAgain(folder.path().to_owned())),
        None => {}
    }
    Ok(PreparedRun {
        session,
        report,
        picture: Some(picture),
        data,
        notes,
        updates,
        rate,
        folder: Some(folder),
        resume,
        began,
        amount,
        best,
        run: resolved.run.clone(),
        run_yaml: resolved.to_yaml_anywhere(),
    })
}

/// Plans, allocates and initialises a run that takes no data.
pub fn prepare_bench(resolved: &Resolved, options: Options<'_>) -> Result<PreparedBench, Failure> {
    let Present { backend, device } = device::present(resolved, options.remeasure)?;
    let mut spec = spec(resolved, &device.profile)?;
    let capacity = capacity(resolved, &device);
    let Device { profile, mut notes, .. } = device;
    let fits =
        |spec: &Spec| plan_run(spec, &profile, capacity.budgets, &DataMemory::none(), Process::Measured).map(|_| ());
    notes.extend(base::settle(&mut spec, resolved, &profile, &fits)?);
    let prepared =
        plimsoll_train::prepare(&spec, backend, &profile, capacity.budgets, &DataMemory::none(), options.paranoid);
    let prepared =
        held(prepared, capacity.budgets).map_err(|error| unprepared(error, &spec, resolved, &profile, &capacity))?;
    notes.extend(capacity.notes);
    notes.extend(of_model(resolved, &spec));
    Ok(PreparedBench { notes, prepared, profile, sequences: spec.sequences, lr: resolved.run.optimizer.lr })
}

/// Plans, allocates and initialises the run's model, without adapters, for one text of `data.max_length` tokens.
pub fn prepare_generation(
    resolved: &Resolved,
    options: Options<'_>,
    new_tokens: usize,
) -> Result<PreparedGeneration, Failure> {
    let length = resolved.run.data.max_length as usize;
    if new_tokens == 0 || new_tokens >= length {
        let message =
            format!("--generate is {new_tokens}, but a text has data.max_length = {length} tokens with its prompt");
        return Err(Failure::usage(message).hint("ask for fewer tokens, or raise data.max_length"));
    }
    let Present { backend, device } = device::present(resolved, options.remeasure)?;
    let mut spec = spec(resolved, &device.profile)?;
    spec.task = match spec.model.config.decoder_start.filter(|_| spec.model.config.streams() > 1) {
        Some(start) => Arc::new(Seq2Seq::new(start)),
        None => Arc::new(Language::sft()),
    };
    spec.recipe = Recipe::forward_only(None, spec.recipe.compute);
    let capacity = capacity(resolved, &device);
    let Device { profile, mut notes, .. } = device;
    let inference = Inference::Generate { sequences: 1 };
    let fits =
        |spec: &Spec| plan_inference(spec, inference, &profile, capacity.budgets, text::beside(&profile)).map(|_| ());
    notes.extend(base::of_inference(&mut spec, resolved, None, &profile, &fits)?);
    let none = DataMemory::none();
    let prepared = prepare_inference(&spec, inference, backend, &profile, capacity.budgets, &none, options.paranoid);
    let prepared =
        held(prepared, capacity.budgets).map_err(|error| not_started(error, resolved, &profile, &capacity))?;
    notes.extend(capacity.notes);
    Ok(PreparedGeneration { notes, prepared, profile, prompt_tokens: length - new_tokens, new_tokens })
}

/// What the model's answers before training take in memory, one for each sequence.
fn references(resolved: &Resolved, data: &RunData) -> Result<Option<u64>, Failure> {
    let sequences = std::iter::once(&data.train).chain(&data.eval).map(Dataset::sequences);
    match sequences.sum::<Option<u64>>() {
        Some(sequences) => Ok(Some(reference_bytes(sequences))),
        None => Err(resolved
            .invalid(
                "data.mode",
                format!("`task: {}` that trains the model itself asks it about all data first", resolved.run.task),
            )
            .hint("set `data.mode: cached` or `memory`, or train adapters, as in method: {lora: {r: 16}}")),
    }
}

/// What of a plan changes more than the order of sums.
fn of_plan(report: &Report) -> Option<Note> {
    (!report.keep.is_empty()).then_some(Note::KeptInFp8)
}

/// Where the model was found, if that is not plain, and what is odd about it.
fn of_model(resolved: &Resolved, spec: &Spec) -> Vec<Note> {
    let snapshot = match &spec.model.origin {
        ModelOrigin::Hub { id, folder } => Some(Note::Snapshot { id: id.clone(), folder: folder.clone() }),
        _ => None,
    };
    let warnings = warning::of_model(&resolved.run, spec).into_iter().chain(warning::of_settings(resolved));
    snapshot.into_iter().chain(warnings.map(Note::Warning)).collect()
}

/// What a run was planned as shows in the bits of its result. It goes on as it was if that still fits; if it does not, the
/// planner decides anew, and the run says that results differ by rounding.
fn keep_bits(spec: &mut Spec, resume: &Resume, profile: &DeviceProfile, budgets: Budgets, data: &DataMemory<'_>) {
    let mut pinned = spec.clone();
    resume.pin(&mut pinned.pins);
    if plan_run(&pinned, profile, budgets, data, Process::Measured).is_ok() {
        *spec = pinned;
    }
}

/// Refuses to go on by itself with what is another run, and to go on where nothing is left to do.
fn check_resume(
    resolved: &Resolved,
    resume: &Resume,
    how: Continue,
    holds: Holds,
    (session, amount, rate): (&mut Session, Amount, &LearningRate),
) -> Result<(), Failure> {
    let changes = resume.changes(session, amount, rate).map_err(|error| explained(error, resolved))?;
    if holds == Holds::Finished && rate.total <= resume.steps() {
        return Err(resolved
            .invalid("out", format!("the run is finished: {} updates of {} are done", resume.steps(), rate.total))
            .hint("raise schedule.steps or schedule.epochs to train it for longer"));
    }
    match changes.iter().find(|change| change.effect == Effect::Course) {
        Some(change) if how == Continue::Unfinished => Err(resolved
            .invalid(
                "out",
                format!("{} holds an unfinished run of another configuration: {change}", shown_out(resolved)),
            )
            .hint("go on with it under the new configuration with --resume, or choose another folder with --out")),
        _ => Ok(()),
    }
}

fn shown_out(resolved: &Resolved) -> String {
    resolved.run.out.as_ref().map_or_else(|| "the folder".to_owned(), |out| out.display().to_string())
}

/// What the best checkpoint is best by, on held-out data.
fn best_by(resolved: &Resolved, data: &RunData, task: &dyn Task) -> Result<Option<BestBy>, Failure> {
    let Some(name) = &resolved.run.save.best else { return Ok(None) };
    if data.eval.is_none() {
        return Err(resolved
            .invalid("save.best", "`save.best` compares evaluations, but the run has no evaluation data")
            .hint("set data.eval or data.eval_split, or remove save.best"));
    }
    if *name == BestBy::Loss.name() {
        return Ok(Some(BestBy::Loss));
    }
    if !task.compares_texts() {
        let message = format!("`save.best` is bleu, which `task: {}` does not report", task.name());
        return Err(resolved.invalid("save.best", message).hint("set save.best to loss, or use `task: seq2seq`"));
    }
    if resolved.run.eval.bleu_rows == 0 {
        return Err(resolved
            .invalid("save.best", "`save.best` is bleu, but `eval.bleu_rows` is 0, so none is computed")
            .hint("set eval.bleu_rows to the number of held-out rows to compare, or save.best to loss"));
    }
    Ok(Some(BestBy::Bleu))
}

impl PreparedRun {
    /// Begins the run in its folder, with the resolved run and the plan in it.
    ///
    /// # Panics
    /// If it was begun before.
    pub fn begin(&mut self) -> Result<RunFolder, Failure> {
        let mut folder = self.folder.take().expect("a run begins once");
        folder.begin(&self.run_yaml, &self.report, self.updates, self.resume.as_ref())?;
        Ok(folder)
    }

    /// Trains to the end, or until `stop` is set; either way the weights are saved.
    pub fn train(
        &mut self,
        folder: &mut RunFolder,
        stop: &AtomicBool,
        observe: &mut dyn FnMut(&Event),
    ) -> Result<Outcome, Failure> {
        let Self { session, data, run, .. } = self;
        let task = Fit {
            train: &data.train,
            eval: data.eval.as_ref(),
            shuffle: run.data.shuffle,
            amount: self.amount,
            rate: self.rate,
            eval_every: run.eval.every.or(data.eval.as_ref().map(|_| self.updates)),
            saving: Saving {
                every: run.save.every,
                interval: run.save.minutes.map(|minutes| seconds(60.0 * minutes)),
                keep: run.save.keep as usize,
                best: self.best,
            },
            guard: Guard {
                action: match run.guard.action {
                    GuardAction::Stop => BadUpdate::Stop,
                    GuardAction::Skip => BadUpdate::Skip,
                },
                limit: run.guard.limit,
                spike: run.guard.spike,
            },
            began: self.began,
            memory: Some(Watching::new(&self.report)),
            resume: self.resume.as_ref(),
            tokenizer_files: data.tokenizer_files.clone(),
            stop,
        };
        Ok(fit(session, &task, folder, observe)?)
    }

    /// The model's answers to as many held-out prompts as the run asks for.
    pub fn samples(&mut self) -> Result<Vec<Sample>, Failure> {
        samples::samples(&mut self.session, &self.data, self.run.eval.samples.unwrap_or(0) as usize)
    }

    pub fn measured(&mut self) -> Measured {
        let gpu = self.session.executor().backend().used();
        Measured { host_bytes: Some(peak_resident_bytes()), gpu_bytes: gpu.map(|used| used.bytes) }
    }

    /// What an update should have taken: the plan is for one whose sequences all have their full length.
    pub fn predicted_ms(&self, outcome: &Outcome) -> f64 {
        let planned_tokens = (self.report.accumulation * self.report.micro_batch_tokens).max(1);
        self.report.predicted.step_ms * outcome.computed_tokens / planned_tokens as f64
    }
}

impl PreparedGeneration {
    pub fn report(&self) -> &Report {
        &self.prepared.report
    }

    /// `heard` is told of every new token.
    pub fn run(&mut self, heard: &mut dyn FnMut()) -> Result<GenerationReport, Failure> {
        Ok(bench_generation(&mut self.prepared, self.prompt_tokens, self.new_tokens, heard)?)
    }

    /// Times every operator of a further token alone.
    pub fn profile(&mut self) -> Result<Vec<OperatorTime>, Failure> {
        Ok(profile_generation(&mut self.prepared, &self.profile)?)
    }
}

impl PreparedBench {
    pub fn report(&self) -> &Report {
        &self.prepared.report
    }

    /// Times `steps` updates after a warm-up. `began` is when the program started; `tick` gets the updates done and all,
    /// warm-up included.
    pub fn run(&mut self, steps: u64, began: Instant, tick: &mut dyn FnMut(u64, u64)) -> Result<BenchReport, Failure> {
        Ok(bench(&mut self.prepared, self.sequences, steps, self.lr, began, tick)?)
    }

    /// Times every operator alone.
    pub fn profile(&mut self) -> Result<Vec<OperatorTime>, Failure> {
        Ok(profile(&mut self.prepared, self.sequences, &self.profile)?)
    }
}
