//! The training loop.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use plimsoll_data::{Amount, Capacity, Dataset, Feed, FeedOptions, Footprint};
use plimsoll_runtime::{BadNumber, RuntimeError};

use crate::checkpoint::{Best, Identity, Progress, Resume, restore};
use crate::event::{Bad, EvalEvent, Event, Resumed, Skip, StepEvent, Warning};
use crate::export::{export_again, export_base};
use crate::guard::{BadUpdate, Guard};
use crate::memory::{Finding, MemoryWatch, Watching, resident_bytes};
use crate::pace::{Gauge, Phases, Totals};
use crate::references::References;
use crate::saver::{Saver, Saving, SavingTimes};
use crate::{Evaluation, LearningRate, Metrics, RunFolder, RunPhase, Session, TrainError, UpdateResult};

/// What to train on, for how long, and what to keep.
pub struct Fit<'a> {
    pub train: &'a Dataset,
    pub eval: Option<&'a Dataset>,
    pub shuffle: bool,
    /// Of one update.
    pub amount: Amount,
    pub rate: LearningRate,
    pub eval_every: Option<u64>,
    pub saving: Saving,
    pub guard: Guard,
    /// File name and content of each tokenizer file, written beside the weights.
    pub tokenizer_files: Vec<(String, Vec<u8>)>,
    /// Whether an eye is kept on the process's memory, and against which plan.
    pub memory: Option<Watching>,
    /// When the whole run began: what its chat template took for the present.
    pub began: SystemTime,
    /// Where to go on; from the beginning if there is none.
    pub resume: Option<&'a Resume>,
    /// Set from outside to stop after the update that is running.
    pub stop: &'a AtomicBool,
}

impl Fit<'_> {
    fn feed_options(&self, session: &Session) -> FeedOptions {
        let options = FeedOptions::new(session.capacity(), session.max_lengths(), self.amount, session.seed());
        FeedOptions { shuffle: self.shuffle, ..options }
    }
}

/// What feeding and evaluating take in the host's memory, given what a micro-batch holds.
pub fn data_bytes(train: &Footprint, eval: Option<&Footprint>, amount: Amount, capacity: Capacity) -> u64 {
    let options = FeedOptions::new(capacity, train.max_length, amount, 0);
    train.feed_bytes(&options) + eval.map_or(0, |data| data.sequential_bytes(capacity))
}

/// How a run ended. Losses are those of the whole run, also where it was resumed; times are those of this part of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Updates done.
    pub steps: u64,
    pub interrupted: bool,
    pub first_loss: Option<f64>,
    pub last_loss: Option<f64>,
    pub first_eval: Option<f64>,
    pub last_eval: Option<f64>,
    /// What the task reports of the last evaluation, by name.
    pub eval_metrics: Metrics,
    /// Median duration of an update, of the newest few thousand.
    pub step_ms: f64,
    pub tokens_per_s: f64,
    /// The share of the time in which training waited for data, the first update not counted: it waits while the feed
    /// starts.
    pub data_wait_share: f64,
    /// The share of the micro-batches' token slots that held a token.
    pub fill_rate: f64,
    /// Tokens that an update computed on average: those it had, or all token slots where micro-batches are filled up.
    pub computed_tokens: f64,
    /// Of the checkpoints; the last weights are none.
    pub saving: SavingTimes,
    /// Where the last weights are.
    pub saved: PathBuf,
    /// The best evaluation, and the folder with the weights it was made with, where the best are kept.
    pub best: Option<(Best, PathBuf)>,
}

/// Trains to the end or until asked to stop; either way the weights are saved.
pub fn fit(
    session: &mut Session,
    task: &Fit,
    folder: &mut RunFolder,
    observe: &mut dyn FnMut(&Event),
) -> Result<Outcome, TrainError> {
    let outcome = Run::start(session, task, &mut *folder, &mut *observe).and_then(Run::train);
    let phase = match &outcome {
        Ok(Outcome { interrupted: true, .. }) => RunPhase::Stopped,
        Ok(_) => RunPhase::Finished,
        Err(_) => RunPhase::Failed,
    };
    if let (Err(error), Ok(outcome)) = (folder.end(phase), &outcome) {
        // The weights are there; that the folder does not say so is no reason to fail.
        observe(&Event::Warning { step: outcome.steps, warning: Warning::State { reason: error.to_string() } });
    }
    outcome
}

/// What became of an update.
enum Tried {
    Applied(UpdateResult, Phases),
    /// Its gradients were too large for the scale of the loss. As elsewhere, the next data come, under a smaller scale.
    Overflowed,
    Bad(Bad),
}

/// A run under way.
struct Run<'a> {
    session: &'a mut Session,
    task: &'a Fit<'a>,
    watch: Watch<'a>,
    /// `None` only while another one is made.
    feed: Option<Feed>,
    progress: Progress,
    saver: Saver,
    memory: Option<MemoryWatch>,
    gauge: Gauge,
    totals: Totals,
}

impl<'a> Run<'a> {
    fn start(
        session: &'a mut Session,
        task: &'a Fit<'a>,
        folder: &'a mut RunFolder,
        observe: &'a mut dyn FnMut(&Event),
    ) -> Result<Self, TrainError> {
        let mut watch = Watch { folder, observe, eval_metrics: Metrics::default(), failing: false };
        let identity = Identity::of(session, task.amount, &task.rate);
        let mut options = task.feed_options(session);
        find_references(session, task, watch.folder.path())?;
        if let Some(resume) = task.resume {
            let changes = resume.changes(session, task.amount, &task.rate)?;
            restore(session, resume.folder())?;
            session.restore_loss_scale(resume.record.progress.loss_scale);
            options.cursor = Some(resume.record.progress.cursor.clone());
            let (folder, damaged) = (resume.folder().to_owned(), resume.damaged.clone());
            watch.tell(&Event::Resumed(Resumed { step: resume.step(), folder, changes, damaged }));
        }
        keep_base(session, task, watch.folder.path())?;
        let feed = Feed::start(task.train, &options)?;
        let progress = match task.resume {
            Some(resume) => resume.record.progress.clone(),
            None => Progress::new(feed.cursor().clone()),
        };
        let saver = Saver::new(session, task, identity, &mut watch)?;
        // Behind the last of what the run takes for itself.
        let memory = task.memory.as_ref().map(MemoryWatch::start);
        let (gauge, totals) = (Gauge::default(), Totals::default());
        Ok(Self { session, task, watch, feed: Some(feed), progress, saver, memory, gauge, totals })
    }

    fn train(mut self) -> Result<Outcome, TrainError> {
        let total = self.task.rate.total;
        if self.task.eval_every.is_some() && self.progress.step == 0 {
            self.progress.first_eval = self.evaluate(0)?.map(|found| found.loss);
            self.progress.last_eval = self.progress.first_eval;
        }
        let mut interrupted = false;
        while self.progress.step < total && !interrupted {
            let step = self.progress.step + 1;
            self.update(step)?;
            let last = step == total;
            let improved = self.evaluate_if_due(step, last)?;
            if last {
                self.progress.best = improved.or(self.progress.best);
            } else {
                self.save_if_due(improved)?;
                self.look_at_memory(step)?;
                interrupted = self.task.stop.load(Ordering::Relaxed) || self.watch.folder.is_asked_to_stop();
            }
        }
        self.saver.settle(&mut self.progress, &mut self.watch)?;
        let saved = if interrupted {
            // What was just saved need not be saved again.
            match self.saver.saved(self.progress.step) {
                Some(folder) => folder,
                None => self.save()?,
            }
        } else {
            self.finish()?
        };
        Ok(self.outcome(interrupted, saved))
    }

    /// One update, made of the data that comes next; where the guard says so, of what comes behind it.
    fn update(&mut self, step: u64) -> Result<(), TrainError> {
        let (began, waited) = (Instant::now(), self.feed().waited().total);
        let lr = self.task.rate.at(step);
        let (result, phases) = loop {
            match self.try_update(step, lr)? {
                Tried::Applied(result, phases) => break (result, phases),
                Tried::Overflowed => self.progress.cursor = self.feed().cursor().clone(),
                Tried::Bad(bad) => self.pass_over(step, bad)?,
            }
        };
        let progress = &mut self.progress;
        progress.loss_scale = self.session.loss_scale();
        progress.guard.count(result.loss);
        progress.step = step;
        progress.first_loss.get_or_insert(result.loss);
        progress.last_loss = Some(result.loss);
        let took = began.elapsed();
        let used = self.gauge.read(self.session);
        if let (Some(memory), Some(used)) = (&self.memory, used) {
            memory.gpu(used, step);
        }
        let seen = self.memory.as_ref().map(MemoryWatch::last).unwrap_or_default();
        // A feed that was started anew has waited less than the one before.
        let data_wait = self.feed().waited().total.saturating_sub(waited);
        let event = StepEvent {
            step,
            loss: result.loss,
            lr,
            grad_norm: result.grad_norm,
            tokens: result.amounts.all_tokens(),
            sequences: result.amounts.sequences,
            tokens_per_s: result.amounts.all_tokens() as f64 / took.as_secs_f64(),
            step_ms: took.as_secs_f64() * 1e3,
            data_wait_ms: data_wait.as_secs_f64() * 1e3,
            forward_backward_ms: phases.forward_backward.as_secs_f64() * 1e3,
            update_ms: phases.update.as_secs_f64() * 1e3,
            fill_rate: result.fill_rate,
            gpu_used_bytes: self.gauge.bytes,
            host_rss_bytes: resident_bytes(),
            host_available_bytes: seen.available_bytes,
            host_swapped_bytes: seen.resident.swapped_bytes,
            major_faults: seen.major_faults,
            metrics: result.metrics.clone(),
        };
        self.watch.tell(&Event::Step(event));
        self.totals.count(&result, took, data_wait);
        Ok(())
    }

    fn feed(&mut self) -> &mut Feed {
        self.feed.as_mut().expect("there is one between updates")
    }

    /// Where the update was not applied, gradients are zero again.
    fn try_update(&mut self, step: u64, lr: f64) -> Result<Tried, TrainError> {
        let Self { session, feed, progress, task, watch, .. } = self;
        let feed = feed.as_mut().expect("there is one between updates");
        let (began, waited) = (Instant::now(), feed.waited().total);
        let sums = match session.accumulate_from(feed, (step, lr), &mut |done, total| {
            (watch.observe)(&Event::MicroBatch { step, done, total });
        }) {
            // Found on the way, where every operator is checked.
            Err(TrainError::Runtime(RuntimeError::NotANumber(origin))) => {
                session.discard()?;
                return Ok(Tried::Bad(Bad::Loss { loss: f64::NAN, origin: Some(origin) }));
            }
            sums => sums?,
        };
        let forward_backward = began.elapsed().saturating_sub(feed.waited().total.saturating_sub(waited));
        let loss = sums.loss;
        if !loss.is_finite() {
            session.discard()?;
            let origin = self.origin(step)?;
            return Ok(Tried::Bad(Bad::Loss { loss, origin }));
        }
        if let Some(usual) = progress.guard.spike(loss, &task.guard) {
            session.discard()?;
            return Ok(Tried::Bad(Bad::Spike { loss, usual }));
        }
        let began = Instant::now();
        let grad_norm = session.apply(step, lr)?;
        let phases = Phases { forward_backward, update: began.elapsed() };
        if session.rescale(grad_norm) {
            return Ok(Tried::Overflowed);
        }
        if !grad_norm.is_finite() {
            let origin = self.origin(step)?;
            return Ok(Tried::Bad(Bad::Gradient { norm: grad_norm, origin }));
        }
        progress.cursor.clone_from(feed.cursor());
        let (amounts, fill_rate, metrics) = (sums.amounts, sums.fill_rate, sums.metrics);
        Ok(Tried::Applied(UpdateResult { loss, grad_norm, amounts, fill_rate, metrics }, phases))
    }

    /// Does the update's micro-steps again with every operator checked. There is planned memory for one feed, so a new one
    /// takes the place of the old; it stands behind the update then, too.
    fn origin(&mut self, step: u64) -> Result<Option<BadNumber>, TrainError> {
        self.feed = None;
        let cursor = Some(self.progress.cursor.clone());
        let options = FeedOptions { cursor, ..self.task.feed_options(self.session) };
        let feed = self.feed.insert(Feed::start(self.task.train, &options)?);
        self.session.find_bad_number(feed, step)
    }

    /// Counts a bad update; beyond what the guard allows, the last good state is saved and the run ends.
    fn pass_over(&mut self, step: u64, bad: Bad) -> Result<(), TrainError> {
        let Guard { action, limit, .. } = self.task.guard;
        assert!(action == BadUpdate::Stop || !self.session.updates_in_backward(), "such an update cannot be left out");
        if action == BadUpdate::Skip && self.progress.guard.skipped < limit {
            self.progress.guard.skipped += 1;
            self.progress.cursor = self.feed().cursor().clone();
            let count = self.progress.guard.skipped;
            self.watch.tell(&Event::Skipped { step, skip: Skip { bad, count, limit } });
            return Ok(());
        }
        self.saver.settle(&mut self.progress, &mut self.watch)?;
        let touched = self.session.updates_in_backward();
        if step > 1 && !touched && self.saver.saved(step - 1).is_none() {
            self.save()?;
        }
        Err(bad.stops(step, touched))
    }

    /// The evaluation on held-out data, if it is the best so far and the best are kept.
    fn evaluate_if_due(&mut self, step: u64, last: bool) -> Result<Option<Best>, TrainError> {
        let Saving { every, best, .. } = self.task.saving;
        let compares = best.is_some() && due(every, step);
        if !(due(self.task.eval_every, step) || compares || (last && self.task.eval_every.is_some())) {
            return Ok(None);
        }
        let found = self.evaluate(step)?;
        if best.is_some() {
            // Whether the best so far has become a checkpoint decides what is better.
            self.saver.settle(&mut self.progress, &mut self.watch)?;
        }
        let Some(found) = found else { return Ok(None) };
        self.progress.last_eval = Some(found.loss);
        let Some((by, value)) = best.and_then(|by| Some((by, by.of(&found)?))) else { return Ok(None) };
        // The earlier one of equals. What a run that is resumed was best by before does not compare.
        let before = self.progress.best.filter(|before| before.by == by);
        let improves = value.is_finite() && before.is_none_or(|before| by.is_better(value, before.value));
        Ok(improves.then_some(Best { by, value, step }))
    }

    fn evaluate(&mut self, step: u64) -> Result<Option<Evaluation>, TrainError> {
        let Some(data) = self.task.eval else { return Ok(None) };
        let began = Instant::now();
        let evaluation = self.session.evaluate(data)?;
        let ms = began.elapsed().as_secs_f64() * 1e3;
        let Evaluation { loss, tokens, sequences, metrics, bleu_rows } = evaluation.clone();
        self.watch.eval_metrics = metrics.clone();
        let eval = EvalEvent { loss, tokens, sequences, ms, metrics, bleu_rows };
        self.watch.tell(&Event::Eval { step, eval });
        Ok(Some(evaluation))
    }

    fn save_if_due(&mut self, improved: Option<Best>) -> Result<(), TrainError> {
        let Self { session, task, watch, progress, saver, .. } = self;
        saver.look(progress, watch)?;
        if improved.is_some() || saver.is_due(progress.step) {
            saver.try_save(session, task, progress, improved, watch)?;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<PathBuf, TrainError> {
        self.saver.save(self.session, self.task, &self.progress, &mut self.watch)
    }

    /// A run that outgrew its plan ends, with what it has saved; of what others do to the machine's memory it only tells.
    fn look_at_memory(&mut self, step: u64) -> Result<(), TrainError> {
        let findings = self.memory.as_ref().map(|memory| memory.findings(step)).unwrap_or_default();
        for finding in findings {
            match finding {
                Finding::Warning(warning) => {
                    self.watch.tell(&Event::Warning { step, warning: Warning::Memory(warning) });
                }
                Finding::Overgrown(growth) => {
                    self.saver.settle(&mut self.progress, &mut self.watch)?;
                    if self.saver.saved(step).is_none() {
                        self.save()?;
                    }
                    return Err(TrainError::Overgrown { step, growth });
                }
            }
        }
        Ok(())
    }

    /// Writes the last weights.
    fn finish(&mut self) -> Result<PathBuf, TrainError> {
        let folder = self.watch.folder.path().join("final");
        self.watch.folder.sync()?;
        export_again(self.session, &folder, &self.task.tokenizer_files)?;
        self.watch.tell(&Event::Saved { step: self.progress.step, folder: folder.clone() });
        Ok(folder)
    }

    fn outcome(self, interrupted: bool, saved: PathBuf) -> Outcome {
        let Self { session, progress, watch, saver, totals, .. } = self;
        let best = progress.best.map(|best| {
            let is_last = best.step == progress.step && !interrupted;
            (best, if is_last { saved.clone() } else { saver.folder_of(best.step) })
        });
        let mut outcome = Outcome {
            steps: progress.step,
            interrupted,
            first_loss: progress.first_loss,
            last_loss: progress.last_loss,
            first_eval: progress.first_eval,
            last_eval: progress.last_eval,
            eval_metrics: watch.eval_metrics,
            step_ms: 0.0,
            tokens_per_s: 0.0,
            data_wait_share: 0.0,
            fill_rate: 1.0,
            computed_tokens: 0.0,
            saving: saver.times(),
            saved,
            best,
        };
        totals.settle(&mut outcome, session.executor().backend().fixed_shape());
        outcome
    }
}

pub(crate) fn due(every: Option<u64>, step: u64) -> bool {
    every.is_some_and(|n| n > 0 && step.is_multiple_of(n))
}

/// The two who want to know: the metrics file and the observer.
pub(crate) struct Watch<'a> {
    pub folder: &'a mut RunFolder,
    observe: &'a mut dyn FnMut(&Event),
    /// What the last evaluation found.
    eval_metrics: Metrics,
    /// The metrics file could not be written the last time.
    failing: bool,
}

impl Watch<'_> {
    /// Training goes on without its metrics file; that it has to is told once, until the file can be written again.
    pub fn tell(&mut self, event: &Event) {
        let recorded = self.folder.record(event);
        (self.observe)(event);
        if let (Err(error), false) = (&recorded, self.failing) {
            let step = match event {
                Event::Step(step) => step.step,
                Event::Eval { step, .. } | Event::Skipped { step, .. } => *step,
                _ => 0,
            };
            (self.observe)(&Event::Warning { step, warning: Warning::Metrics { reason: error.to_string() } });
        }
        self.failing = recorded.is_err();
    }
}

/// Asks the model what it finds likely while it is as it was, or reads what it found when the run began.
fn find_references(session: &mut Session, task: &Fit, run: &Path) -> Result<(), TrainError> {
    if !session.needs_references() {
        return Ok(());
    }
    let path = References::path(run);
    let references = match task.resume {
        Some(_) => References::read(&path)?,
        None => {
            let datasets: Vec<&Dataset> = std::iter::once(task.train).chain(task.eval).collect();
            let found = References::compute(session, &datasets)?;
            found.write(&path)?;
            found
        }
    };
    session.set_references(references);
    Ok(())
}

/// Adapters are of no use without the weights that they were trained beside. Drawn weights are in no file, so a run that
/// trains adapters beside them writes them into a folder of its own when it begins.
fn keep_base(session: &mut Session, task: &Fit, run: &Path) -> Result<(), TrainError> {
    if session.recipe.lora.is_none() || session.model.weights_folder().is_some() {
        return Ok(());
    }
    let folder = run.join("base");
    // A run that begins again may begin otherwise: what is there is then the base of other adapters.
    if task.resume.is_none() || !folder.exists() {
        export_base(session, &folder, &task.tokenizer_files)?;
    }
    session.set_base(std::path::absolute(&folder).map_err(|e| TrainError::io(&folder, e))?);
    Ok(())
}
