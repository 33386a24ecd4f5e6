//! Looks for values that are no numbers in what operators make, on any device.

use half::{bf16, f16};
use plimsoll_graph::{DType, OpRule};
use plimsoll_plan::{Region, Step};

use crate::{Active, Backend, RuntimeError};

/// Where a value first was none: the operator that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadNumber {
    /// In its schedule.
    pub step: usize,
    pub op: &'static str,
    pub layer: Option<u32>,
}

/// Which values are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sought {
    NotANumber,
    NotFinite,
}

impl Sought {
    fn has(self, value: f32) -> bool {
        match self {
            Self::NotANumber => value.is_nan(),
            Self::NotFinite => !value.is_finite(),
        }
    }

    /// The first of an operator's outputs in which there is such a value, as the operator's fault.
    pub fn find(
        self,
        backend: &mut dyn Backend,
        index: usize,
        step: &Step,
        active: Active,
    ) -> Result<Option<BadNumber>, RuntimeError> {
        // Only the columns it names are written when a product fills part of a row; the rest follows.
        if step.op.writes_some_columns() {
            return Ok(None);
        }
        // Codes are no numbers until they are decoded, and what they are decoded to is looked at.
        for output in step.outputs.iter().filter(|output| output.storage.blocks.is_none()) {
            let bytes = active.rows(output) * output.shape.cols() * output.dtype().bytes();
            if self.is_in(backend, Region { bytes, ..output.region }, output.dtype())? {
                return Ok(Some(BadNumber { step: index, op: step.op.name(), layer: step.layer }));
            }
        }
        Ok(None)
    }

    fn is_in(self, backend: &mut dyn Backend, region: Region, dtype: DType) -> Result<bool, RuntimeError> {
        if !matches!(dtype, DType::F32 | DType::BF16 | DType::F16) {
            return Ok(false);
        }
        if let Some(held) = backend.host_bytes(region) {
            return Ok(self.is_among(held, dtype));
        }
        let mut piece = vec![0; PIECE_BYTES.min(region.bytes)];
        for done in (0..region.bytes).step_by(PIECE_BYTES) {
            let piece = &mut piece[..PIECE_BYTES.min(region.bytes - done)];
            backend.read(Region { offset: region.offset + done, bytes: piece.len(), ..region }, piece)?;
            if self.is_among(piece, dtype) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_among(self, bytes: &[u8], dtype: DType) -> bool {
        match dtype {
            DType::F32 => bytes.as_chunks().0.iter().any(|&b| self.has(f32::from_le_bytes(b))),
            DType::BF16 => bytes.as_chunks().0.iter().any(|&b| self.has(bf16::from_le_bytes(b).to_f32())),
            DType::F16 => bytes.as_chunks().0.iter().any(|&b| self.has(f16::from_le_bytes(b).to_f32())),
            _ => false,
        }
    }
}

/// Bytes that are looked at together where the host cannot address them.
const PIECE_BYTES: usize = 1 << 20;
