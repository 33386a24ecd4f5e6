//! When a run is saved, and what is kept.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::checkpoint::{Best, Checkpoints, Contents, FORMAT, Identity, Progress, Record, SavedBytes};
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

/// How long a run may go on before it would hurt to lose it.
const INTERVAL: Duration = Duration::from_secs(30 * 60);

impl Default for Saving {
    fn default() -> Self {
        Self { every: None, interval: Some(INTERVAL), keep: 2, best: None }
    }
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
        let checkpoints = Checkpoints::new(watch.folder.path(), saving.keep);
        let step = task.resume.map(|resume| resume.step());
        Ok(Self { saving, checkpoints, identity, step, at: Instant::now(), failed_at: None })
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

    pub fn failed(&mut self) {
        self.failed_at = Some(Instant::now());
    }

    pub fn save(
        &mut self,
        session: &mut Session,
        task: &Fit,
        progress: &Progress,
        watch: &mut Watch,
    ) -> Result<PathBuf, TrainError> {
        // A run that goes on from here must find the lines of all updates before. If they cannot be written, which is told
        // with the next one, the weights matter more.
        let _ = watch.folder.sync();
        let record = Record {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            steps: task.rate.total,
            plan: session.plan_position(),
            identity: self.identity.clone(),
            progress: progress.clone(),
        };
        let run_yaml = watch.folder.run_yaml().to_owned();
        let contents = Contents { record: &record, tokenizer_files: &task.tokenizer_files, run_yaml: &run_yaml };
        let folder = self.checkpoints.save(session, &contents)?;
        (self.step, self.at, self.failed_at) = (Some(progress.step), Instant::now(), None);
        watch.tell(&Event::Saved { step: progress.step, folder: folder.clone() });
        let best = progress.best.filter(|_| self.saving.best.is_some());
        if let Err(error) = self.checkpoints.prune(best.map(|Best { step, .. }| step)) {
            let warning = Warning::Checkpoint { reason: error.to_string() };
            watch.tell(&Event::Warning { step: progress.step, warning });
        }
        Ok(folder)
    }
}
