//! What the model itself says to held-out sources, beside what was expected.

use std::ops::ControlFlow;
use std::sync::Arc;

use plimsoll_data::{Dataset, MicroBatch, NO_LOSS, Tokenizer};

use crate::bleu::Bleu;
use crate::{Ending, Sampling, Session, TrainError};

/// How texts are compared.
#[derive(Clone)]
pub struct TextComparison {
    pub tokenizer: Arc<Tokenizer>,
    /// Held-out rows to generate for, the first ones; none of them if it is zero.
    pub rows: u64,
}

/// One sequence of a micro-batch.
struct Expected {
    source: Vec<u32>,
    target: Vec<u32>,
}

impl Session {
    /// Has evaluations of a task whose texts are compared generate some, and report BLEU.
    pub fn compare_texts(&mut self, comparison: TextComparison) {
        self.comparison = Some(comparison);
    }

    /// BLEU of the likeliest texts to the first held-out sources, and to how many; `None` where none are compared.
    pub(crate) fn bleu(&mut self, data: &Dataset) -> Result<Option<(f64, u64)>, TrainError> {
        let Some(TextComparison { tokenizer, rows }) = self.comparison.clone() else { return Ok(None) };
        if rows == 0 || !self.task.compares_texts() {
            return Ok(None);
        }
        let ending = Ending { stop: tokenizer.eos_id().into_iter().collect(), max_new: self.max_length() };
        let (mut bleu, mut compared) = (Bleu::default(), 0);
        let mut batches = data.sequential(self.capacity())?;
        while let Some(batch) = batches.next_batch()? {
            let mut expected = sequences(batch);
            expected.truncate(usize::try_from(rows - compared).unwrap_or(usize::MAX));
            let sources: Vec<Vec<u32>> = expected.iter_mut().map(|row| std::mem::take(&mut row.source)).collect();
            let texts = self.generate(&sources, &Sampling::GREEDY, &ending, &mut |_, _| ControlFlow::Continue(()))?;
            for (text, row) in texts.iter().zip(&expected) {
                bleu.add(&tokenizer.decode(&text.tokens, true)?, &tokenizer.decode(&row.target, true)?);
            }
            compared += expected.len() as u64;
            if compared >= rows {
                break;
            }
        }
        Ok(Some((bleu.score(), compared)))
    }
}

/// Sources with the targets that are learnt behind them.
fn sequences(batch: &MicroBatch) -> Vec<Expected> {
    let range = |stream: usize, sequence: usize| {
        let ends = &batch.streams[stream].cu_seqlens;
        ends[sequence] as usize..ends[sequence + 1] as usize
    };
    let sequence = |index: usize| Expected {
        source: batch.streams[1].tokens[range(1, index)].iter().map(|token| token.cast_unsigned()).collect(),
        target: batch.targets[range(0, index)]
            .iter()
            .filter(|&&target| target != NO_LOSS)
            .map(|target| target.cast_unsigned())
            .collect(),
    };
    (0..batch.sequences()).map(sequence).collect()
}
