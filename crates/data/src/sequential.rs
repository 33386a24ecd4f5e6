//! A dataset once through, in its own order: for evaluation.

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::pack::{Capacity, MicroBatch};
use crate::store::Example;
use crate::walk::{Next, Walk};

/// Micro-batches one after another, in one buffer; as many groups in each as fit.
pub struct Sequential {
    walk: Walk,
    capacity: Capacity,
    batch: MicroBatch,
    /// Sequences handed out.
    passed: u64,
    max_length: usize,
}

impl Sequential {
    pub(crate) fn new(dataset: &Dataset, capacity: Capacity, max_length: usize) -> Result<Self, DataError> {
        let walk = dataset.walk_once()?;
        Ok(Self { walk, capacity, batch: MicroBatch::with_capacity(capacity), passed: 0, max_length })
    }

    /// `None` at the end.
    pub fn next_batch(&mut self) -> Result<Option<&MicroBatch>, DataError> {
        self.batch.clear();
        loop {
            match self.walk.peek()? {
                Next::Group => {}
                Next::WindowFull => {
                    self.walk.begin_window();
                    continue;
                }
                Next::End => break,
            }
            if !self.take()? {
                break;
            }
        }
        // Each is read as soon as it is taken, so nothing has to be kept.
        self.walk.begin_window();
        Ok((!self.batch.is_empty()).then_some(&self.batch))
    }

    /// Adds the group looked at; `false` if there is no room.
    fn take(&mut self) -> Result<bool, DataError> {
        let group = self.walk.group().to_vec();
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
            let walk = &mut self.walk;
            self.batch
                .append(located.entry.tokens as usize, id, |tokens, targets| walk.read(located, tokens, targets))?;
            self.passed += 1;
        }
        self.walk.advance();
        Ok(true)
    }
}

/// The first `count` sequences of a dataset.
pub(crate) fn first(dataset: &Dataset, count: usize) -> Result<Vec<Example>, DataError> {
    let mut walk = dataset.walk_once()?;
    let mut examples = Vec::new();
    while examples.len() < count {
        match walk.peek()? {
            Next::Group => {}
            Next::WindowFull => {
                walk.begin_window();
                continue;
            }
            Next::End => break,
        }
        for located in walk.group().to_vec() {
            let length = located.entry.tokens as usize;
            let (mut tokens, mut targets) = (vec![0; length], vec![0; length]);
            walk.read(&located, &mut tokens, &mut targets)?;
            examples.push(Example { tokens: tokens.into_iter().map(i32::cast_unsigned).collect(), targets });
        }
        walk.advance();
    }
    examples.truncate(count);
    Ok(examples)
}
