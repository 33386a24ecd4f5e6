//! From a checkpoint back to a run.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use plimsoll_data::Amount;
use plimsoll_graph::WeightFormat;
use plimsoll_plan::{KeepPin, Pins};
use plimsoll_runtime::weights::Checkpoint;

use super::manifest::{Damage, Manifest};
use super::record::{RECORD_FILE, Record};
use super::save::{STATE_STEM, state_tensors};
use super::{Change, Effect, Identity, step_of};
use crate::export::{trained_tensors, weights_stem};
use crate::{LearningRate, Session, TrainError};

/// The checkpoint a run goes on from.
#[derive(Debug, Clone)]
pub struct Resume {
    folder: PathBuf,
    pub(crate) record: Record,
    /// Newer checkpoints that cannot be used.
    pub damaged: Vec<Damaged>,
}

/// A checkpoint that is not what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damaged {
    pub folder: PathBuf,
    /// The file in it.
    pub file: String,
    pub reason: String,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be used: {}", self.folder.join(&self.file).display(), self.reason)
    }
}

impl Resume {
    /// The newest sound checkpoint of a run; `None` if it has none at all. An error if all it has are damaged.
    pub fn find(run: &Path) -> Result<Option<Self>, TrainError> {
        let mut damaged = Vec::new();
        for (_, folder) in list(&run.join("checkpoints")).into_iter().rev() {
            match read(&folder) {
                Ok(record) => return Ok(Some(Self { folder, record, damaged })),
                Err(Damage { file, reason }) => damaged.push(Damaged { folder, file, reason }),
            }
        }
        if damaged.is_empty() { Ok(None) } else { Err(TrainError::NoSoundCheckpoint { damaged }) }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The update after which it was written.
    pub fn step(&self) -> u64 {
        self.record.progress.step
    }

    /// When the run began, if the checkpoint says so.
    pub fn began(&self) -> Option<SystemTime> {
        let since = Duration::from_secs(self.record.began);
        UNIX_EPOCH.checked_add(since).filter(|_| !since.is_zero())
    }

    /// Updates the run was to have in all.
    pub fn steps(&self) -> u64 {
        self.record.steps
    }

    /// The format of few bits that the run's base was stored in, if it was.
    pub fn base_format(&self) -> Option<WeightFormat> {
        self.record.identity.base_format()
    }

    /// What is not as it was when the checkpoint was written. Refused if training cannot go on from it.
    pub fn changes(
        &self,
        session: &mut Session,
        amount: Amount,
        rate: &LearningRate,
    ) -> Result<Vec<Change>, TrainError> {
        let changes = self.record.identity.compare(&Identity::of(session, amount, rate))?;
        let change = self.record.base.as_ref().zip(session.base_mark()).and_then(|(was, is)| was.change(is));
        if let Some(change) = change {
            return Err(TrainError::BaseChanged { model: session.model.name(), change });
        }
        if self.step() > rate.total {
            let (was, is) = (format!("{} updates done", self.step()), format!("{} updates in all", rate.total));
            return Err(TrainError::Changed(Change { key: "schedule", was, is, effect: Effect::Refused }));
        }
        Ok(changes)
    }

    /// Pins what shows in the bits to what the run was planned as, unless the user has pinned it.
    pub fn pin(&self, pins: &mut Pins) {
        let plan = self.record.plan;
        pins.micro_batch_tokens = pins.micro_batch_tokens.or(Some(plan.micro_batch_tokens));
        pins.loss_chunks = pins.loss_chunks.or(plan.loss_chunks);
        pins.mlp_chunks = pins.mlp_chunks.or(Some(plan.mlp_chunks));
        if pins.keep == KeepPin::RoundedIfBetter {
            pins.keep = if plan.keep_fp8 { KeepPin::Rounded } else { KeepPin::Exact };
        }
    }
}

fn read(folder: &Path) -> Result<Record, Damage> {
    Manifest::verify(folder)?;
    Record::read(folder).map_err(|error| Damage { file: RECORD_FILE.to_owned(), reason: error.to_string() })
}

/// The checkpoints in a folder, by update.
pub(super) fn list(folder: &Path) -> BTreeMap<u64, PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((step_of(entry.file_name().to_str()?)?, entry.path()))).collect()
}

/// Fills in weights and states, each from where it was written.
pub(crate) fn restore(session: &mut Session, folder: &Path) -> Result<(), TrainError> {
    let trained = (weights_stem(session), trained_tensors(session));
    for (stem, tensors) in [trained, (STATE_STEM, state_tensors(session))] {
        let files = Checkpoint::open(folder, stem)?;
        for tensor in &tensors {
            files.load_exactly(tensor, session.executor().backend())?;
        }
    }
    Ok(())
}

/// Gives what lies behind the update another name, so that it is neither counted nor mistaken for what comes now.
pub(crate) fn set_aside(run: &Path, step: u64) -> Result<(), TrainError> {
    for (_, folder) in list(&run.join("checkpoints")).into_iter().filter(|(later, _)| *later > step) {
        let aside = folder.with_extension("damaged");
        let removed = if aside.exists() { plimsoll_files::remove_folder(&aside) } else { Ok(()) };
        removed.and_then(|()| plimsoll_files::ops::rename(&folder, &aside)).map_err(|e| TrainError::io(&folder, e))?;
    }
    Ok(())
}
