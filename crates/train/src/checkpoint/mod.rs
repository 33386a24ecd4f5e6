//! Checkpoints: everything that decides the future of a run, in a folder that is whole or not there.
//!
//! `checkpoints/step-N/` holds what was trained as Hugging Face or PEFT have it, and beside it
//!
//! | file | what |
//! |---|---|
//! | `state.safetensors` | every slot that lives from update to update and is no weight: optimizer states, float32 copies |
//! | `training.json` | position in data and schedule, seed, best evaluation, plan and configuration |
//! | `run.yaml` | the resolved configuration, for people |
//! | `manifest.json` | size and checksum of every other file, written last |
//!
//! Nothing is held twice: tensors go from the arena to the disk a piece at a time.

mod identity;
mod manifest;
mod record;
mod resume;
mod save;

pub(crate) use identity::Identity;
pub use identity::{Change, Effect};
pub use record::Best;
pub(crate) use record::{FORMAT, PlanPosition, Progress, Record};
pub use resume::{Damaged, Resume};
pub(crate) use resume::{restore, set_aside};
pub(crate) use save::{Checkpoints, Contents, SavedBytes};

/// Which update a folder is the checkpoint of.
fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.parse().ok()
}
