//! The training loop.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll_data::{Amount, Capacity, Cursor, Dataset, Feed, FeedOptions};

use crate::event::{EvalEvent, Event, StepEvent};
use crate::export::export;
use crate::memory::resident_bytes;
use crate::{Evaluation, LearningRate, Metrics, RunFolder, Session, TrainError, UpdateResult};

/// What to train on, for how long, and what to keep.
pub struct Fit<'a> {
    pub train: &'a Dataset,
    pub eval: Option<&'a Dataset>,
    pub shuffle: bool,
    /// Of one update.
    pub amount: Amount,
    pub rate: LearningRate,
    pub eval_every: Option<u64>,
    pub save_every: Option<u64>,
    pub save_keep: usize,
    /// Keep the checkpoint with the lowest held-out loss beside the newest ones.
    pub save_best: bool,
    /// File name and content of each tokenizer file, written beside the weights.
    pub tokenizer_files: Vec<(String, Vec<u8>)>,
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
pub fn data_bytes(train: &Dataset, eval: Option<&Dataset>, amount: Amount, capacity: Capacity) -> u64 {
    let options = FeedOptions::new(capacity, train.max_length(), amount, 0);
    train.feed_bytes(&options) + eval.map_or(0, |data| data.sequential_bytes(capacity))
}

/// How a run ended.
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
    /// Median duration of an update.
    pub step_ms: f64,
    pub tokens_per_s: f64,
    /// The share of the time in which training waited for data, the first update not counted: it waits while the feed
    /// starts.
    pub data_wait_share: f64,
    /// The share of the micro-batches' token slots that held a token.
    pub fill_rate: f64,
    /// Tokens that an update computed on average: those it had, or all token slots where micro-batches are filled up.
    pub computed_tokens: f64,
    pub saved: PathBuf,
}

/// Trains to the end or until asked to stop; either way the weights are saved.
pub fn fit(
    session: &mut Session,
    task: &Fit,
    folder: &mut RunFolder,
    observe: &mut dyn FnMut(&Event),
) -> Result<Outcome, TrainError> {
    let mut watch = Watch { folder, observe, eval_metrics: Metrics::default() };
    let mut feed = Feed::start(task.train, &task.feed_options(session))?;
    let mut gauge = Gauge::default();
    let mut totals = Totals::default();
    let mut cursor = feed.cursor().clone();
    let mut best = None;
    let mut outcome = Outcome {
        steps: 0,
        interrupted: false,
        first_loss: None,
        last_loss: None,
        first_eval: None,
        last_eval: None,
        eval_metrics: Metrics::default(),
        step_ms: 0.0,
        tokens_per_s: 0.0,
        data_wait_share: 0.0,
        fill_rate: 1.0,
        computed_tokens: 0.0,
        saved: folder_of(&watch),
    };
    if task.eval_every.is_some() {
        outcome.first_eval = evaluate(session, task, 0, &mut watch)?;
        outcome.last_eval = outcome.first_eval;
    }
    for step in 1..=task.rate.total {
        let began = Instant::now();
        let waited_before = feed.waited().total;
        let lr = task.rate.at(step);
        let result = match session.update_from(&mut feed, step, lr, &mut |done, total| {
            (watch.observe)(&Event::MicroBatch { step, done, total });
        }) {
            Err(error) if error.leaves_weights() && step > 1 => {
                save(session, task, &Reached { step: step - 1, best, cursor: &cursor }, &mut watch)?;
                return Err(error);
            }
            updated => updated?,
        };
        cursor.clone_from(feed.cursor());
        let took = began.elapsed();
        let data_wait = feed.waited().total - waited_before;
        let event = Event::Step(StepEvent {
            step,
            loss: result.loss,
            lr,
            grad_norm: result.grad_norm,
            tokens: result.amounts.tokens,
            sequences: result.amounts.sequences,
            tokens_per_s: result.amounts.tokens as f64 / took.as_secs_f64(),
            step_ms: took.as_secs_f64() * 1e3,
            data_wait_ms: data_wait.as_secs_f64() * 1e3,
            fill_rate: result.fill_rate,
            gpu_used_bytes: gauge.read(session),
            host_rss_bytes: resident_bytes(),
            metrics: result.metrics.clone(),
        });
        watch.tell(&event)?;
        totals.count(&result, took, data_wait);
        outcome.steps = step;
        outcome.first_loss.get_or_insert(result.loss);
        outcome.last_loss = Some(result.loss);
        let last = step == task.rate.total;
        let compares = task.save_best && due(task.save_every, step);
        if due(task.eval_every, step) || compares || (last && task.eval_every.is_some()) {
            outcome.last_eval = evaluate(session, task, step, &mut watch)?;
        }
        if due(task.save_every, step) && !last {
            best = best_of(best, outcome.last_eval, step);
            save(session, task, &Reached { step, best, cursor: &cursor }, &mut watch)?;
        }
        if task.stop.load(Ordering::Relaxed) && !last {
            outcome.interrupted = true;
            break;
        }
    }
    outcome.eval_metrics = watch.eval_metrics.clone();
    totals.settle(&mut outcome, session.executor().backend().fixed_shape());
    outcome.saved = if outcome.interrupted {
        save(session, task, &Reached { step: outcome.steps, best, cursor: &cursor }, &mut watch)?
    } else {
        let folder = watch.folder.path().join("final");
        export(session, &folder, &task.tokenizer_files)?;
        watch.tell(&Event::Saved { step: outcome.steps, folder: folder.clone() })?;
        folder
    };
    Ok(outcome)
}

/// What updates took and had so far.
#[derive(Default)]
struct Totals {
    durations_ms: Vec<f64>,
    tokens: u64,
    slots: f64,
    /// Behind the first update, which waits while the feed starts.
    waited: Duration,
    /// Behind the first update.
    took: Duration,
}

impl Totals {
    fn count(&mut self, result: &UpdateResult, took: Duration, waited: Duration) {
        if !self.durations_ms.is_empty() {
            self.waited += waited;
            self.took += took;
        }
        self.durations_ms.push(took.as_secs_f64() * 1e3);
        self.tokens += result.amounts.tokens;
        self.slots += result.amounts.tokens as f64 / result.fill_rate;
    }

    /// `filled_up`: all token slots were computed, whether they held a token or not.
    fn settle(&mut self, outcome: &mut Outcome, filled_up: bool) {
        let tokens = self.tokens as f64;
        let seconds = self.durations_ms.iter().sum::<f64>() / 1e3;
        self.durations_ms.sort_by(f64::total_cmp);
        let updates = self.durations_ms.len();
        outcome.step_ms = self.durations_ms.get(updates / 2).copied().unwrap_or(0.0);
        outcome.tokens_per_s = tokens / f64::max(seconds, 1e-9);
        outcome.data_wait_share = self.waited.as_secs_f64() / f64::max(self.took.as_secs_f64(), 1e-9);
        outcome.fill_rate = tokens / f64::max(self.slots, 1.0);
        outcome.computed_tokens = if filled_up { self.slots } else { tokens } / updates.max(1) as f64;
    }
}

/// How often the driver is asked what is in use: the answer takes it up to a few milliseconds.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

/// Device memory in use, as last asked.
#[derive(Default)]
struct Gauge {
    last: Option<(Instant, u64)>,
}

impl Gauge {
    fn read(&mut self, session: &mut Session) -> u64 {
        match self.last {
            Some((when, bytes)) if when.elapsed() < GAUGE_INTERVAL => bytes,
            _ => {
                let bytes = session.executor().backend().used().map_or(0, |used| used.bytes);
                self.last = Some((Instant::now(), bytes));
                bytes
            }
        }
    }
}

fn folder_of(watch: &Watch) -> PathBuf {
    watch.folder.path().to_owned()
}

fn due(every: Option<u64>, step: u64) -> bool {
    every.is_some_and(|n| n > 0 && step.is_multiple_of(n))
}

/// The two who want to know: the metrics file and the observer.
struct Watch<'a> {
    folder: &'a mut RunFolder,
    observe: &'a mut dyn FnMut(&Event),
    /// What the last evaluation found.
    eval_metrics: Metrics,
}

impl Watch<'_> {
    fn tell(&mut self, event: &Event) -> Result<(), TrainError> {
        self.folder.record(event)?;
        (self.observe)(event);
        Ok(())
    }
}

fn evaluate(session: &mut Session, task: &Fit, step: u64, watch: &mut Watch) -> Result<Option<f64>, TrainError> {
    let Some(data) = task.eval else { return Ok(None) };
    let began = Instant::now();
    let Evaluation { loss, tokens, sequences, metrics } = session.evaluate(data)?;
    let ms = began.elapsed().as_secs_f64() * 1e3;
    watch.eval_metrics = metrics.clone();
    let eval = EvalEvent { loss, tokens, sequences, ms, metrics };
    watch.tell(&Event::Eval { step, eval })?;
    Ok(Some(loss))
}

/// The checkpoint with the lowest held-out loss so far, the earlier one of equals.
fn best_of(best: Option<(f64, u64)>, loss: Option<f64>, step: u64) -> Option<(f64, u64)> {
    match (best, loss) {
        (Some((lowest, _)), Some(loss)) if loss >= lowest => best,
        (_, Some(loss)) => Some((loss, step)),
        (_, None) => best,
    }
}

/// Where a run stands when it is saved.
struct Reached<'a> {
    step: u64,
    /// The lowest held-out loss so far and its update.
    best: Option<(f64, u64)>,
    /// Behind the last update.
    cursor: &'a Cursor,
}

/// The file in a checkpoint that says how far its run had come in the data.
const CURSOR_FILE: &str = "data.json";

fn save(session: &mut Session, task: &Fit, reached: &Reached, watch: &mut Watch) -> Result<PathBuf, TrainError> {
    let Reached { step, best, cursor } = *reached;
    let folder = watch.folder.checkpoint(step);
    let parent = folder.parent().expect("checkpoints lie in a folder");
    std::fs::create_dir_all(parent).map_err(|e| TrainError::io(parent, e))?;
    let cursor = serde_json::to_vec_pretty(cursor).expect("plain data");
    let beside: Vec<_> = task.tokenizer_files.iter().cloned().chain([(CURSOR_FILE.to_owned(), cursor)]).collect();
    export(session, &folder, &beside)?;
    watch.folder.prune(task.save_keep, best.map(|(_, step)| step).filter(|_| task.save_best))?;
    watch.tell(&Event::Saved { step, folder: folder.clone() })?;
    Ok(folder)
}
