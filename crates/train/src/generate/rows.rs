//! The rows of one step of generation, as the device takes them.

use plimsoll_graph::{SlotId, Streams};
use plimsoll_models::{CacheInputs, StreamInputs};
use plimsoll_runtime::{Active, ActiveStream, Executor};

use crate::TrainError;

/// The place of a row that belongs to no sequence.
const NOWHERE: i32 = -1;

/// Rows of one stream.
#[derive(Default)]
struct StreamRows {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    places: Vec<i32>,
    boundaries: Vec<i32>,
}

impl StreamRows {
    fn clear(&mut self) {
        let Self { tokens, positions, places, boundaries } = self;
        [tokens, positions, places, &mut *boundaries].into_iter().for_each(Vec::clear);
        boundaries.push(0);
    }

    /// Tokens of one sequence, from a position on.
    fn add(&mut self, place: i32, first: usize, tokens: &[u32]) {
        self.tokens.extend(tokens.iter().map(|token| token.cast_signed()));
        self.positions.extend((first..first + tokens.len()).map(|position| position as i32));
        self.places.resize(self.tokens.len(), place);
        self.boundaries.push(self.tokens.len() as i32);
    }

    fn write(&self, executor: &mut Executor, slots: StreamInputs, places: SlotId) -> Result<(), TrainError> {
        executor.write_slot(slots.tokens, &self.tokens)?;
        executor.write_slot(slots.positions, &self.positions)?;
        executor.write_slot(places, &self.places)?;
        Ok(executor.write_slot(slots.boundaries, &self.boundaries)?)
    }

    fn active(&self) -> ActiveStream {
        ActiveStream { tokens: self.tokens.len(), sequences: self.boundaries.len().saturating_sub(1) }
    }
}

#[derive(Default)]
pub(super) struct StepRows {
    main: StreamRows,
    /// What sequences are conditioned on, of those that begin.
    source: StreamRows,
    /// Of each row of the main stream: the last position of its sequence's source.
    last: Vec<i32>,
    /// The places whose sequences have rows, in their order.
    pub(super) sequences: Vec<usize>,
}

impl StepRows {
    pub(super) fn clear(&mut self) {
        self.main.clear();
        self.source.clear();
        self.last.clear();
        self.sequences.clear();
    }

    /// Tokens of the sequence at a place, from a position on, which is conditioned on so many.
    pub(super) fn add(&mut self, place: usize, first: usize, tokens: &[u32], source_tokens: usize) {
        self.main.add(place as i32, first, tokens);
        self.last.resize(self.main.tokens.len(), source_tokens as i32 - 1);
        self.sequences.push(place);
    }

    /// What the sequence at a place is conditioned on, as a whole.
    pub(super) fn add_source(&mut self, place: usize, tokens: &[u32]) {
        self.source.add(place as i32, 0, tokens);
    }

    /// Rows of no sequence, until there are so many.
    pub(super) fn fill_up(&mut self, rows: usize) {
        while self.main.tokens.len() < rows {
            self.main.add(NOWHERE, 0, &[0]);
            self.last.push(NOWHERE);
        }
    }

    /// Rows of the sequence that comes in this place among those that have any.
    pub(super) fn of_sequence(&self, index: usize) -> usize {
        (self.main.boundaries[index + 1] - self.main.boundaries[index]) as usize
    }

    /// Writes everything to the device. `streams` are the slots of each stream.
    pub(super) fn write(
        &self,
        executor: &mut Executor,
        streams: &[StreamInputs],
        cache: &CacheInputs,
    ) -> Result<Active, TrainError> {
        self.main.write(executor, streams[0], cache.places)?;
        let Some(source) = cache.source else { return Ok(Active { streams: Streams::one(self.main.active()) }) };
        executor.write_slot(source.last, &self.last)?;
        if !self.source.tokens.is_empty() {
            self.source.write(executor, streams[1], source.places)?;
        }
        Ok(Active { streams: Streams::new(&[self.main.active(), self.source.active()]) })
    }
}
