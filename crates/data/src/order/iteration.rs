//! The groups of a dataset in the order of training, from any cursor on.

use serde::{Deserialize, Serialize};

use super::stored::StoredIteration;
use super::streamed::StreamIteration;
use crate::batch::MicroBatch;
use crate::error::DataError;
use crate::store::{ChunkStart, Entry, PerToken};

/// How far training has come: all a checkpoint has to remember of the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Groups consumed since the start; for data that can be reached by number, this is all there is to it.
    pub groups: u64,
    /// Of the data and the order it was made with: a cursor means nothing under another one.
    pub order: u64,
    /// One for each weighted source of a stream, or one for all.
    pub sources: Vec<SourceCursor>,
}

/// Where one stream goes on: the chunk to read again, and how much of it was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceCursor {
    pub chunk: ChunkStart,
    /// Groups of the chunk that were handed out.
    pub index: u64,
}

/// Where a sequence lies: in a store, or in a source's chunk that is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Located {
    pub source: u32,
    pub chunk: u64,
    pub entry: Entry,
}

/// What an iteration comes to next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A group; [`Iteration::group`] has its records.
    Group,
    /// There is one, but to hold it something of the window would have to go first.
    WindowFull,
    /// Only where one epoch was asked for.
    End,
}

pub(crate) enum Iteration {
    Stored(StoredIteration),
    Streamed(StreamIteration),
}

impl Iteration {
    /// Looks at the next group without taking it.
    pub(crate) fn peek(&mut self) -> Result<Next, DataError> {
        match self {
            Self::Stored(iteration) => iteration.peek(),
            Self::Streamed(iteration) => iteration.peek(),
        }
    }

    /// The records of the group looked at: each sequence has one per stream.
    pub(crate) fn group(&self) -> &[Located] {
        match self {
            Self::Stored(iteration) => &iteration.group,
            Self::Streamed(iteration) => &iteration.group,
        }
    }

    /// Takes the group looked at.
    pub(crate) fn advance(&mut self) {
        match self {
            Self::Stored(iteration) => iteration.advance(),
            Self::Streamed(iteration) => iteration.advance(),
        }
    }

    /// From here on sequences taken before need not be kept.
    pub(crate) fn begin_window(&mut self) {
        match self {
            Self::Stored(_) => {}
            Self::Streamed(iteration) => iteration.begin_window(),
        }
    }

    /// Behind the last group taken.
    pub(crate) fn cursor(&self) -> Cursor {
        match self {
            Self::Stored(iteration) => iteration.cursor(),
            Self::Streamed(iteration) => iteration.cursor(),
        }
    }

    pub(crate) fn seek(&mut self, cursor: &Cursor) -> Result<(), DataError> {
        match self {
            Self::Stored(iteration) => iteration.seek(cursor),
            Self::Streamed(iteration) => iteration.seek(cursor),
        }
    }

    /// Appends the sequences of a group taken since the window began; `row_id` names the first token of the group's `i`-th
    /// sequence in a stream.
    pub(crate) fn read_into(
        &mut self,
        batch: &mut MicroBatch,
        records: &[Located],
        row_id: impl Fn(usize, usize) -> u32,
    ) -> Result<(), DataError> {
        let streams = batch.streams.len();
        for (index, located) in records.iter().enumerate() {
            let (sequence, stream) = (index / streams, index % streams);
            batch.append(stream, located.entry.tokens as usize, row_id(sequence, stream), |tokens, beside| {
                self.read(located, tokens, beside)
            })?;
        }
        Ok(())
    }

    /// Reads one record taken since the window began; returns its label if it has one.
    pub(crate) fn read(
        &mut self,
        located: &Located,
        tokens: &mut [i32],
        beside: Option<PerToken<'_>>,
    ) -> Result<Option<i32>, DataError> {
        match self {
            Self::Stored(stored) => stored.read(located, tokens, beside),
            Self::Streamed(streamed) => streamed.read(located, tokens, beside),
        }
    }
}
