//! When a run is saved, and what is kept.

use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_files::fault::inherit;
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Best, Checkpoints, Contents, FORMAT, Identity, Progress, Record, SavedBytes, Snapshot};
use crate::event::{Event, Warning};
use crate::fit::{Watch, due};
use crate::{Evaluation, Fit, Session, TrainError};

/// When checkpoints are written and which are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saving {
    /// Updates between them.
    pub every: Option<u64>,
    /// The longest time without one.
    pub interval: Option<Duration>,
    /// Newest ones that are kept.
    pub keep: usize,
    /// Save whenever an evaluation is the best so far, and keep that one beside the newest.
    pub best: Option<BestBy>,
}

/// What evaluations are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BestBy {
    /// The lowest is the best.
    #[default]
    Loss,
    /// The highest is the best.
    Bleu,
}

impl BestBy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Bleu => "bleu",
        }
    }

    /// What an evaluation found of it.
    pub(crate) fn of(self, evaluation: &Evaluation) -> Option<f64> {
        match self {
            Self::Loss => Some(evaluation.loss),
            Self::Bleu => evaluation.metrics.get(self.name()),
        }
    }

    pub(crate) fn is_better(self, found: f64, than: f64) -> bool {
        match self {
            Self::Loss => found < than,
            Self::Bleu => found > than,
        }
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// How long a run may go on before it would hurt to lose it.
const INTERVAL: Duration = Duration::from_secs(30 * 60);

impl Default for Saving {
    fn default() -> Self {
        Self { every: None, interval: Some(INTERVAL), keep: 2, best: None }
    }
}

/// What the checkpoints of a run took so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SavingTimes {
    pub checkpoints: u64,
    /// How long training waited for them.
    pub waited: Duration,
    /// How long they were written, while training waited or beside it.
    pub wrote: Duration,
}

/// How soon a save that failed is tried again.
const RETRY: Duration = Duration::from_secs(60);

pub(crate) struct Saver {
    saving: Saving,
    checkpoints: Checkpoints,
    identity: Identity,
    /// The update of the newest checkpoint of this run.
    step: Option<u64>,
    /// When that was written; at first, when the run began.
    at: Instant,
    failed_at: Option<Instant>,
    /// Where the plan has room for one, and it is not in use.
    snapshot: Option<Snapshot>,
    flight: Option<Flight>,
    times: SavingTimes,
}

/// A checkpoint that is being written while training goes on.
struct Flight {
    step: u64,
    /// What the best was before.
    best: Option<Best>,
    thread: JoinHandle<(Snapshot, Result<Written, TrainError>)>,
}

struct Written {
    folder: PathBuf,
    /// Old ones that could not be removed.
    pruned: Result<(), TrainError>,
    took: Duration,
}

impl Saver {
    /// Refuses a disk that does not hold the least that a run leaves.
    pub fn new(session: &mut Session, task: &Fit, identity: Identity, watch: &mut Watch) -> Result<Self, TrainError> {
        let saving = task.saving;
        let beside = task.tokenizer_files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let SavedBytes { model, checkpoint } = SavedBytes::of(session, beside);
        // Wherever a run ends, it leaves one checkpoint or the final weights; checkpoints that are there count already.
        if task.resume.is_none() {
            watch.folder.check_space(model.max(checkpoint))?;
            let kept = saving.keep.max(1) as u64 + 1 + u64::from(saving.best.is_some());
            let is_saved_on_the_way = saving.every.is_some() || saving.best.is_some();
            if is_saved_on_the_way
                && let Err(TrainError::NoSpace { needed, free, .. }) =
                    watch.folder.check_space(model + kept * checkpoint)
            {
                watch.tell(&Event::Warning { step: 0, warning: Warning::Space { needed, free } });
            }
        }
        let snapshot = match session.snapshot_bytes() {
            0 => None,
            planned => Some(Snapshot::new(session, planned)?),
        };
        let checkpoints = Checkpoints::new(watch.folder.path(), saving.keep);
        let step = task.resume.map(|resume| resume.step());
        let (at, failed_at, flight) = (Instant::now(), None, None);
        let times = SavingTimes::default();
        let saver = Self { saving, checkpoints, identity, step, at, failed_at, snapshot, flight, times };
        if let Some(resume) = task.resume {
            let progress = &resume.record.progress;
            saver.checkpoints.go_on(progress.step, progress.best, saver.kept_best(progress));
        }
        Ok(saver)
    }

    pub fn is_due(&self, step: u64) -> bool {
        let passed = |since: Instant, time: Duration| since.elapsed() >= time;
        match self.failed_at {
            Some(failed) => passed(failed, RETRY),
            None => due(self.saving.every, step) || self.saving.interval.is_some_and(|time| passed(self.at, time)),
        }
    }

    /// The checkpoint of this update, if it is the newest.
    pub fn saved(&self, step: u64) -> Option<PathBuf> {
        self.step.filter(|&saved| saved == step).map(|step| self.checkpoints.path(step))
    }

    pub fn folder_of(&self, step: u64) -> PathBuf {
        self.checkpoints.path(step)
    }

    /// Saves at once, or begins to where there is memory for it. A save that fails is told and tried again; what is lost so
    /// far is only time.
    pub fn try_save(
        &mut self,
        session: &mut Session,
        task: &Fit,
        progress: &mut Progress,
        improved: Option<Best>,
        watch: &mut Watch,
    ) -> Result<(), TrainError> {
        self.settle(progress, watch)?;
        let before = progress.best;
        progress.best = improved.or(before);
        if let Some(snapshot) = self.snapshot.take() {
            return self.begin(session, task, progress, before, snapshot, watch);
        }
        match self.save(session, task, progress, watch) {
            Err(error) => self.failed(error, before, progress, watch),
            Ok(_) => Ok(()),
        }
    }

    /// Copies what is to be saved and has it written by a thread of its own.
    fn begin(
        &mut self,
        session: &mut Session,
        task: &Fit,
        progress: &mut Progress,
        best: Option<Best>,
        mut snapshot: Snapshot,
        watch: &mut Watch,
    ) -> Result<(), TrainError> {
        let began = Instant::now();
        let mut contents = self.contents(session, task, progress, watch);
        snapshot.take(session, &mut contents)?;
        self.times.waited += began.elapsed();
        let (checkpoints, kept) = (self.checkpoints.clone(), self.kept_best(progress));
        let write = inherit(move || {
            let began = Instant::now();
            let written = checkpoints.save(&contents, &|region, bytes| snapshot.read(region, bytes));
            let written = written.map(|folder| (folder, checkpoints.prune(kept)));
            let written = written.map(|(folder, pruned)| Written { folder, pruned, took: began.elapsed() });
            (snapshot, written)
        });
        let Ok(thread) = thread::Builder::new().name("checkpoint".to_owned()).spawn(write) else {
            // The snapshot went with the thread; from now on training waits.
            return match self.save(session, task, progress, watch) {
                Err(error) => self.failed(error, best, progress, watch),
                Ok(_) => Ok(()),
            };
        };
        self.flight = Some(Flight { step: progress.step, best, thread });
        (self.at, self.failed_at) = (Instant::now(), None);
        Ok(())
    }

    /// Tells of a checkpoint that has been written meanwhile.
    pub fn look(&mut self, progress: &mut Progress, watch: &mut Watch) -> Result<(), TrainError> {
        if self.flight.as_ref().is_some_and(|flight| flight.thread.is_finished()) {
            self.settle(progress, watch)?;
        }
        Ok(())
    }

    /// Waits for the checkpoint that is being written, if one is.
    pub fn settle(&mut self, progress: &mut Progress, watch: &mut Watch) -> Result<(), TrainError> {
        let Some(Flight { step, best, thread }) = self.flight.take() else { return Ok(()) };
        let began = Instant::now();
        let (snapshot, written) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.times.waited += began.elapsed();
        self.snapshot = Some(snapshot);
        match written {
            Ok(written) => {
                self.step = Some(step);
                self.count(&written);
                tell_saved(step, &written, watch);
                Ok(())
            }
            Err(error) => self.failed(error, best, progress, watch),
        }
    }

    /// `best` is what it was before.
    fn failed(
        &mut self,
        error: TrainError,
        best: Option<Best>,
        progress: &mut Progress,
        watch: &mut Watch,
    ) -> Result<(), TrainError> {
        if !error.is_of_writing() {
            return Err(error);
        }
        // The best is the best of what is kept.
        progress.best = best;
        let warning = Warning::Checkpoint { reason: error.to_string() };
        watch.tell(&Event::Warning { step: progress.step, warning });
        self.failed_at = Some(Instant::now());
        Ok(())
    }

    /// Saves while training waits. Nothing else may be being written.
    pub fn save(
        &mut self,
        session: &mut Session,
        task: &Fit,
        progress: &Progress,
        watch: &mut Watch,
    ) -> Result<PathBuf, TrainError> {
        assert!(self.flight.is_none(), "one checkpoint at a time");
        let began = Instant::now();
        let contents = self.contents(session, task, progress, watch);
        let backend = &*session.executor().backend();
        let folder = self.checkpoints.save(&contents, &|region, bytes| backend.read(region, bytes))?;
        (self.step, self.at, self.failed_at) = (Some(progress.step), Instant::now(), None);
        let pruned = self.checkpoints.prune(self.kept_best(progress));
        let written = Written { folder, pruned, took: began.elapsed() };
        self.times.waited += written.took;
        self.count(&written);
        tell_saved(progress.step, &written, watch);
        Ok(written.folder)
    }

    fn count(&mut self, written: &Written) {
        self.times.checkpoints += 1;
        self.times.wrote += written.took;
    }

    pub fn times(&self) -> SavingTimes {
        self.times
    }

    fn contents(&self, session: &mut Session, task: &Fit, progress: &Progress, watch: &mut Watch) -> Contents {
        // A run that goes on from here must find the lines of all updates before. If they cannot be written, which is told
        // with the next one, the weights matter more.
        let _ = watch.folder.sync();
        let record = Record {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            began: seconds(task.began),
            steps: task.rate.total,
            plan: session.plan_position(),
            identity: self.identity.clone(),
            base: session.base_mark().cloned(),
            progress: progress.clone(),
        };
        Contents::new(session, &record, &task.tokenizer_files, watch.folder.run_yaml())
    }

    /// The update whose checkpoint is kept beside the newest.
    fn kept_best(&self, progress: &Progress) -> Option<u64> {
        progress.best.filter(|_| self.saving.best.is_some()).map(|Best { step, .. }| step)
    }
}

fn tell_saved(step: u64, written: &Written, watch: &mut Watch) {
    watch.tell(&Event::Saved { step, folder: written.folder.clone() });
    if let Err(error) = &written.pruned {
        let warning = Warning::Checkpoint { reason: error.to_string() };
        watch.tell(&Event::Warning { step, warning });
    }
}

impl Drop for Saver {
    /// However a run ends, nothing is being written behind its end.
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            let _ = flight.thread.join();
        }
    }
}
