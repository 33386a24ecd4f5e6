//! Into how many chunks the rows of a micro-batch may be divided.

use plimsoll_graph::{BatchShape, Chunks, Program};

use super::Search;
use crate::PlanError;

/// Tokens whose logits exist at one time, from fastest to smallest.
const LOSS_ROWS: [usize; 3] = [2048, 512, 128];
/// Rows that an MLP works on at a time, from largest to smallest, where those of one group of sequences are many more.
const MLP_ROWS: [usize; 2] = [4096, 1024];

impl<B: AsRef<Program>, E: From<PlanError>> Search<'_, B, E> {
    /// Every micro-batch considered must be divisible into as many chunks as the user wants.
    pub(super) fn check_chunks(&self) -> Result<(), PlanError> {
        let tokens = self.batches()?.last().map_or(0, BatchShape::tokens);
        let pins = &self.request.pins;
        for (key, pinned) in [("plan.loss_chunks", pins.loss_chunks), ("plan.mlp_chunks", pins.mlp_chunks)] {
            if let Some(chunks) = pinned.filter(|chunks| !(1..=tokens).contains(chunks)) {
                let reason =
                    format!("`{key}` is {chunks}, but a micro-batch of {tokens} tokens has 1 to {tokens} chunks");
                return Err(PlanError::Pin { key: key.into(), reason });
            }
        }
        Ok(())
    }

    /// Numbers of loss chunks to consider, fastest first.
    pub(super) fn loss_chunks(&self, batch: BatchShape) -> Vec<usize> {
        if !self.request.chunked_loss {
            return vec![1];
        }
        if let Some(chunks) = self.request.pins.loss_chunks {
            return vec![chunks];
        }
        let mut chunks: Vec<usize> = LOSS_ROWS.iter().map(|rows| batch.tokens().div_ceil(*rows)).collect();
        chunks.dedup();
        chunks
    }

    /// Numbers of chunks of an MLP to consider, fewest first. Where a smaller micro-batch does as much, there is only one.
    pub(super) fn mlp_chunks(&self, batch: BatchShape) -> Result<Vec<usize>, PlanError> {
        if let Some(chunks) = self.request.pins.mlp_chunks {
            return Ok(vec![chunks]);
        }
        let mut chunks = vec![1];
        if self.batches()?.last() == Some(&batch) {
            chunks.extend(MLP_ROWS.iter().map(|rows| batch.tokens().div_ceil(*rows)));
            chunks.dedup();
        }
        Ok(chunks)
    }

    /// Of both, those of a whole MLP first.
    pub(super) fn chunks(&self, batch: BatchShape) -> Result<Vec<Chunks>, PlanError> {
        let loss = self.loss_chunks(batch);
        let both =
            self.mlp_chunks(batch)?.into_iter().flat_map(|mlp| loss.iter().map(move |&loss| Chunks { loss, mlp }));
        Ok(both.collect())
    }
}
