//! Writing checkpoints, and which of them are kept.

use std::path::{Path, PathBuf};

use plimsoll_files::{NewFolder, link, remove_folder, sweep};
use plimsoll_graph::{DType, Role, Shape};
use plimsoll_runtime::weights::{OutTensor, ReadRegion, safetensors_bytes};

use super::manifest::Manifest;
use super::record::RECORD_FILE;
use super::resume::list;
use super::{Best, Record};
use crate::export::{Parts, model_parts, trained_tensors};
use crate::{Session, TrainError};

pub(super) const STATE_STEM: &str = "state";

/// The checkpoints of one run.
#[derive(Clone)]
pub(crate) struct Checkpoints {
    folder: PathBuf,
    /// Newest ones that are kept.
    keep: usize,
}

/// All that a checkpoint consists of; the bytes of its tensors are elsewhere.
pub(crate) struct Contents {
    pub parts: Parts,
    step: u64,
    best: Option<Best>,
}

impl Contents {
    pub fn new(session: &mut Session, record: &Record, tokenizer: &[(String, Vec<u8>)], run_yaml: &str) -> Self {
        let mut parts = model_parts(session, tokenizer);
        parts.tensors.push((format!("{STATE_STEM}.safetensors"), state_tensors(session)));
        parts.small.push((RECORD_FILE.to_owned(), record.to_bytes()));
        parts.small.push(("run.yaml".to_owned(), run_yaml.into()));
        Self { parts, step: record.progress.step, best: record.progress.best }
    }
}

/// What lives from update to update and is no weight, whatever the optimizers are. Elements stored in blocks are taken as
/// the bytes they are.
pub(super) fn state_tensors(session: &mut Session) -> Vec<OutTensor> {
    let plan = session.executor().plan();
    let kept = plan.slots.iter().filter(|(_, slot)| slot.role == Role::OptimizerState);
    kept.map(|(id, slot)| {
        let (shape, dtype) = match slot.storage.blocks {
            None => (slot.shape, slot.dtype()),
            Some(_) => (Shape::new(&[slot.bytes()]), DType::U8),
        };
        OutTensor { name: slot.name.clone(), shape, dtype, region: plan.slot(id), coded: None }
    })
    .collect()
}

/// Bytes on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SavedBytes {
    /// What is left of the run in the end.
    pub model: u64,
    pub checkpoint: u64,
}

impl SavedBytes {
    /// `beside`: tokenizer files.
    pub fn of(session: &mut Session, beside: u64) -> Self {
        let model = safetensors_bytes(&trained_tensors(session)) + beside + SMALL_FILES_BYTES;
        Self { model, checkpoint: model + safetensors_bytes(&state_tensors(session)) }
    }
}

/// Configurations, record and manifest take less.
const SMALL_FILES_BYTES: u64 = 256 << 10;

impl Checkpoints {
    pub fn new(run: &Path, keep: usize) -> Self {
        Self { folder: run.join("checkpoints"), keep: keep.max(1) }
    }

    /// Writes the checkpoint of an update.
    pub fn save(&self, contents: &Contents, read: &ReadRegion<'_>) -> Result<PathBuf, TrainError> {
        let folder = self.path(contents.step);
        std::fs::create_dir_all(&self.folder).map_err(|e| TrainError::io(&self.folder, e))?;
        sweep(&self.folder);
        write(contents, &folder, read)?;
        self.name_newest(contents.step, contents.best);
        Ok(folder)
    }

    /// Does what a process that was killed behind a checkpoint may not have come to. The old ones are none of a run's
    /// cares: what cannot be removed now is tried again with the next save, which says so.
    pub fn go_on(&self, step: u64, best: Option<Best>, kept: Option<u64>) {
        self.name_newest(step, best);
        let _ = self.prune(kept);
    }

    fn name_newest(&self, step: u64, best: Option<Best>) {
        self.name("latest", step);
        if let Some(Best { step, .. }) = best.filter(|best| self.path(best.step).exists()) {
            self.name("best", step);
        }
    }

    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("step-{step}"))
    }

    /// For people and scripts; nothing here reads it, so a file system without links does without.
    fn name(&self, name: &str, step: u64) {
        let _ = link(&self.folder.join(name), Path::new(&format!("step-{step}")));
    }

    /// Removes all but the newest ones and the best one. Only behind a save, so that there is never none.
    pub fn prune(&self, best: Option<u64>) -> Result<(), TrainError> {
        let found = list(&self.folder);
        let surplus = found.len().saturating_sub(self.keep);
        for (_, path) in found.iter().take(surplus).filter(|(step, _)| Some(**step) != best) {
            remove_folder(path).map_err(|e| TrainError::io(path, e))?;
        }
        Ok(())
    }
}

fn write(contents: &Contents, folder: &Path, read: &ReadRegion<'_>) -> Result<(), TrainError> {
    let io = |e| TrainError::io(folder, e);
    let new = NewFolder::create(folder).map_err(io)?;
    let files = contents.parts.write(&new, folder, read)?;
    Manifest::new(files).write(&new).map_err(io)?;
    new.replace(folder).map_err(io)
}
