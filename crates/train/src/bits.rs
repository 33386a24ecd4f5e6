//! Bits per byte: a loss that does not depend on how a tokenizer divides a text.

use plimsoll_graph::ScheduleId;
use plimsoll_runtime::Executor;

use crate::TrainError;

/// Counts over the tokens that bear loss. Special tokens stand for no byte and count on neither side.
#[derive(Debug, Default)]
pub(crate) struct BitsPerByte {
    nats: f64,
    bytes: u64,
    /// Each token's negative log-likelihood, as the device found it.
    nll: Vec<f32>,
}

impl BitsPerByte {
    /// Adds the micro-batch that was evaluated last.
    pub(crate) fn count(
        &mut self,
        executor: &Executor,
        targets: &[i32],
        byte_lengths: &[u32],
    ) -> Result<(), TrainError> {
        let Some(result) = executor.results(ScheduleId::EVALUATE).first() else { return Ok(()) };
        self.nll.resize(targets.len(), 0.0);
        executor.read_result(result, &mut self.nll)?;
        for (&target, &nll) in targets.iter().zip(&self.nll) {
            let word = usize::try_from(target).ok();
            let bytes = word.and_then(|word| byte_lengths.get(word)).copied().unwrap_or(0);
            if bytes > 0 {
                self.nats += f64::from(nll);
                self.bytes += u64::from(bytes);
            }
        }
        Ok(())
    }

    /// `None` if nothing was counted.
    pub(crate) fn value(&self) -> Option<f64> {
        (self.bytes > 0).then(|| self.nats / std::f64::consts::LN_2 / self.bytes as f64)
    }
}
