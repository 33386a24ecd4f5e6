//! A copy of what a checkpoint is made of, in host memory of planned size, so that training may go on while it is written.

use plimsoll_plan::{Region, WRITER_BYTES};
use plimsoll_runtime::RuntimeError;
use plimsoll_runtime::weights::OutTensor;

use super::Contents;
use super::save::state_tensors;
use crate::export::trained_tensors;
use crate::{Session, TrainError};

/// Taken once when a run begins, and used for one checkpoint after another.
pub(crate) struct Snapshot {
    bytes: Vec<u8>,
}

impl Snapshot {
    /// Memory for all that a checkpoint of this session holds, resident from now on.
    pub fn new(session: &mut Session, planned_bytes: u64) -> Result<Self, TrainError> {
        let tensors = [trained_tensors(session), state_tensors(session)].concat();
        let size: usize = tensors.iter().map(|tensor| tensor.region.bytes).sum();
        assert_eq!(size as u64 + WRITER_BYTES, planned_bytes, "the plan knows what a checkpoint holds");
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|error| RuntimeError::OutOfMemory {
            device: "the host".to_owned(),
            bytes: size,
            reason: error.to_string(),
        })?;
        // Every page is touched, so that what is planned is what is there.
        bytes.resize(size, 1);
        Ok(Self { bytes })
    }

    /// Copies the tensors of a checkpoint, which are found here from now on.
    pub fn take(&mut self, session: &mut Session, contents: &mut Contents) -> Result<(), TrainError> {
        let mut end = 0;
        let backend = &*session.executor().backend();
        for OutTensor { region, .. } in contents.parts.tensors.iter_mut().flat_map(|(_, tensors)| tensors) {
            let place = end..end + region.bytes;
            end = place.end;
            backend.read(*region, &mut self.bytes[place.clone()])?;
            *region = Region { offset: place.start, ..*region };
        }
        Ok(())
    }

    /// As the arena would be read.
    pub fn read(&self, region: Region, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        bytes.copy_from_slice(&self.bytes[region.offset..region.end()]);
        Ok(())
    }
}
