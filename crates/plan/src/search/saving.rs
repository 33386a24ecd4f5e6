//! Whether there is room for a snapshot, from which checkpoints are written while training goes on.

use plimsoll_graph::{Program, Role, SlotTable};

use super::Search;
use crate::PlanError;

/// Whether checkpoints are written from a snapshot in host memory while training goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SavePin {
    /// Training waits while they are written.
    #[default]
    Between,
    /// Where the plan that is chosen without one leaves the host's memory for it.
    IfRoom,
    /// There must be room for it.
    Beside,
}

/// What the thread that writes from a snapshot takes beside it: a buffer of a mebibyte, its stack, its share of the heap.
pub const WRITER_BYTES: u64 = 1280 << 10;

impl<B: AsRef<Program>, E: From<PlanError>> Search<'_, B, E> {
    /// What a checkpoint is made of has the same size whatever the micro-batch. With what it takes to write it.
    pub(super) fn measure_snapshot(&self) -> Result<u64, E> {
        if self.request.pins.save == SavePin::Between {
            return Ok(0);
        }
        Ok(checkpoint_bytes(&(*self.known(self.smallest()?)?.built).as_ref().slots) + WRITER_BYTES)
    }

    /// Of a snapshot that there must be room for.
    pub(super) fn pinned_snapshot_bytes(&self) -> u64 {
        if self.request.pins.save == SavePin::Beside { self.snapshot_bytes } else { 0 }
    }
}

/// Bytes of what was trained and of the optimizers' states. Beside adapters, the model itself is not saved.
fn checkpoint_bytes(slots: &SlotTable) -> u64 {
    let is_adapted = slots.iter().any(|(_, slot)| slot.role == Role::Adapter);
    let trained = if is_adapted { Role::Adapter } else { Role::Weight };
    let saved = slots.iter().filter(|(_, slot)| slot.role == trained || slot.role == Role::OptimizerState);
    saved.map(|(_, slot)| slot.bytes() as u64).sum()
}
