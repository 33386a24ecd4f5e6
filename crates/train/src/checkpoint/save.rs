//! Writing checkpoints, and which of them are kept.

use std::path::{Path, PathBuf};

use plimsoll_files::{NewFolder, link, remove_folder, sweep};
use plimsoll_graph::{DType, Role, Shape};
use plimsoll_runtime::weights::{OutTensor, safetensors_bytes};

use super::manifest::Manifest;
use super::record::RECORD_FILE;
use super::resume::list;
use super::{Best, Record};
use crate::export::{trained_tensors, write_model, write_tensors};
use crate::{Session, TrainError};

pub(super) const STATE_STEM: &str = "state";

/// The checkpoints of one run.
pub(crate) struct Checkpoints {
    folder: PathBuf,
    /// Newest ones that are kept.
    keep: usize,
}

/// What goes into a checkpoint beside what the session holds.
pub(crate) struct Contents<'a> {
    pub record: &'a Record,
    pub tokenizer_files: &'a [(String, Vec<u8>)],
    pub run_yaml: &'a str,
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
        OutTensor { name: slot.name.clone(), shape, dtype, region: plan.slot(id) }
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
    pub fn save(&self, session: &mut Session, contents: &Contents) -> Result<PathBuf, TrainError> {
        let folder = self.path(contents.record.progress.step);
        std::fs::create_dir_all(&self.folder).map_err(|e| TrainError::io(&self.folder, e))?;
        sweep(&self.folder);
        self.write(session, contents, &folder)?;
        self.name("latest", contents.record.progress.step);
        let best = contents.record.progress.best;
        if let Some(Best { step, .. }) = best.filter(|best| self.path(best.step).exists()) {
            self.name("best", step);
        }
        Ok(folder)
    }

    fn write(&self, session: &mut Session, contents: &Contents, folder: &Path) -> Result<(), TrainError> {
        let io = |e| TrainError::io(folder, e);
        let new = NewFolder::create(folder).map_err(io)?;
        let mut files = write_model(session, &new, folder, contents.tokenizer_files)?;
        let state = format!("{STATE_STEM}.safetensors");
        let tensors = state_tensors(session);
        files.push(write_tensors(session, &new, folder, &state, &tensors)?);
        for (name, bytes) in [(RECORD_FILE, contents.record.to_bytes()), ("run.yaml", contents.run_yaml.into())] {
            files.push((name.to_owned(), new.write(name, &bytes).map_err(io)?));
        }
        Manifest::new(files).write(&new).map_err(io)?;
        new.replace(folder).map_err(io)
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
