//! A dataset once through, in its own order: for evaluation.

use crate::batch::{Capacity, MicroBatch, PerStream, STREAMS_MAX, check_group_fits, check_streams};
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::order::{Iteration, Located, Next};
use crate::store::{Example, PerToken};

/// Micro-batches one after another, in one buffer; as many groups in each as fit.
pub struct Sequential {
    iteration: Iteration,
    capacity: Capacity,
    batch: MicroBatch,
    /// Sequences handed out.
    passed: u64,
    group: usize,
    max_length: PerStream<usize>,
}

impl Sequential {
    pub(crate) fn new(dataset: &Dataset, capacity: Capacity) -> Result<Self, DataError> {
        let (max_length, group) = (dataset.max_length(), dataset.group());
        check_streams(&max_length, &capacity)?;
        let batch = MicroBatch::with_filled_capacity(&capacity, &max_length, group, dataset.has_marks());
        Ok(Self { iteration: dataset.iterate_once()?, capacity, batch, passed: 0, group, max_length })
    }

    /// `None` at the end. It may be filled up in place.
    pub fn next_batch(&mut self) -> Result<Option<&mut MicroBatch>, DataError> {
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
        // Each is read as soon as it is taken, so nothing has to be held.
        self.iteration.begin_window();
        Ok((!self.batch.is_empty()).then_some(&mut self.batch))
    }

    /// Adds the group looked at; `false` if there is no space for it.
    fn take(&mut self) -> Result<bool, DataError> {
        let records = self.iteration.group().to_vec();
        let streams = self.capacity.len();
        let mut fits = self.batch.sequences() + self.group <= self.capacity.sequences();
        for (stream, capacity) in self.capacity.iter().enumerate() {
            let length: usize = records.iter().skip(stream).step_by(streams).map(|r| r.entry.tokens as usize).sum();
            fits &= self.batch.streams[stream].len() + length <= capacity.tokens;
        }
        if !fits && self.batch.is_empty() {
            let lengths = |records: &[Located]| {
                std::array::from_fn(|stream| records.get(stream).map_or(0, |located| located.entry.tokens as usize))
            };
            let (index, members) = (self.passed as usize, records.chunks(streams).map(lengths));
            // Lengths beyond `max_length` cannot be in the dataset; only the capacity decides.
            check_group_fits(members, index, self.group, &[usize::MAX; STREAMS_MAX], &self.capacity)?;
            return Err(DataError::Malformed);
        }
        if !fits {
            return Ok(false);
        }
        // Nothing is dropped out of an evaluation; the name only has to exist.
        let first = self.passed as u32;
        let row_id = |sequence: usize, stream: usize| {
            first.wrapping_add(sequence as u32).wrapping_mul(self.max_length[stream] as u32) & 0x7FFF_FFFF
        };
        self.iteration.read_into(&mut self.batch, &records, row_id)?;
        self.passed += self.group as u64;
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
        for records in iteration.group().to_vec().chunks(dataset.streams()) {
            examples.push(read_example(&mut iteration, records, dataset.has_marks())?);
        }
        iteration.advance();
    }
    examples.truncate(count);
    Ok(examples)
}

fn read_example(iteration: &mut Iteration, records: &[Located], marked: bool) -> Result<Example, DataError> {
    let mut example = Example::default();
    for (stream, located) in records.iter().enumerate() {
        let length = located.entry.tokens as usize;
        let mut tokens = vec![0; length];
        if stream == 0 {
            example.targets.resize(length, 0);
            example.marks.resize(if marked { length } else { 0 }, crate::NO_MARK);
            let beside = PerToken { targets: &mut example.targets, marks: &mut example.marks };
            example.label = iteration.read(located, &mut tokens, Some(beside))?;
        } else {
            iteration.read(located, &mut tokens, None)?;
        }
        let into = if stream == 0 { &mut example.tokens } else { &mut example.source };
        into.extend(tokens.into_iter().map(i32::cast_unsigned));
    }
    Ok(example)
}
