//! A dataset once through, in its own order: for evaluation.

use crate::batch::{Capacity, MicroBatch};
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::order::{Iteration, Next};
use crate::store::Example;

/// Micro-batches one after another, in one buffer; as many groups in each as fit.
pub struct Sequential {
    iteration: Iteration,
    capacity: Capacity,
    batch: MicroBatch,
    /// Sequences handed out.
    passed: u64,
    max_length: usize,
}

impl Sequential {
    pub(crate) fn new(dataset: &Dataset, capacity: Capacity, max_length: usize) -> Result<Self, DataError> {
        let iteration = dataset.iterate_once()?;
        Ok(Self { iteration, capacity, batch: MicroBatch::with_capacity(capacity), passed: 0, max_length })
    }

    /// `None` at the end.
    pub fn next_batch(&mut self) -> Result<Option<&MicroBatch>, DataError> {
        self.batch.clear();
        loop {
            match self.iteration.peek()? {
                Next::Group => {}
                Next::WindowFull => {
                    self.iteration.begin_window();
                    continue;
                }
                Next::End => break,
            }
            if !self.take()? {
                break;
            }
        }
        // Each is read as soon as it is taken, so nothing has to be kept.
        self.iteration.begin_window();
        Ok((!self.batch.is_empty()).then_some(&self.batch))
    }

    /// Adds the group looked at; `false` if there is no room.
    fn take(&mut self) -> Result<bool, DataError> {
        let group = self.iteration.group().to_vec();
        let length: usize = group.iter().map(|located| located.entry.tokens as usize).sum();
        let Capacity { tokens, sequences } = self.capacity;
        if self.batch.len() + length > tokens || self.batch.sequences() + group.len() > sequences {
            if self.batch.is_empty() {
                return Err(DataError::DoesNotFit { index: self.passed as usize, length, capacity: tokens });
            }
            return Ok(false);
        }
        for located in &group {
            // Nothing is dropped out of an evaluation; the name only has to exist.
            let id = (self.passed as u32).wrapping_mul(self.max_length as u32) & 0x7FFF_FFFF;
            let iteration = &mut self.iteration;
            self.batch.append(located.entry.tokens as usize, id, |tokens, targets| {
                iteration.read(located, tokens, targets)
            })?;
            self.passed += 1;
        }
        self.iteration.advance();
        Ok(true)
    }
}

/// The first `count` sequences of a dataset.
pub(crate) fn first(dataset: &Dataset, count: usize) -> Result<Vec<Example>, DataError> {
    let mut iteration = dataset.iterate_once()?;
    let mut examples = Vec::new();
    while examples.len() < count {
        match iteration.peek()? {
            Next::Group => {}
            Next::WindowFull => {
                iteration.begin_window();
                continue;
            }
            Next::End => break,
        }
        for located in iteration.group().to_vec() {
            let length = located.entry.tokens as usize;
            let (mut tokens, mut targets) = (vec![0; length], vec![0; length]);
            iteration.read(&located, &mut tokens, &mut targets)?;
            examples.push(Example { tokens: tokens.into_iter().map(i32::cast_unsigned).collect(), targets });
        }
        iteration.advance();
    }
    examples.truncate(count);
    Ok(examples)
}
