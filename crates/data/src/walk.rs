//! The groups of a dataset in the order of training, from any cursor on.

mod stored;
mod streamed;

use serde::{Deserialize, Serialize};

pub(crate) use stored::{Stored, StoredWalk};
pub(crate) use streamed::StreamWalk;

use crate::error::DataError;
use crate::record::Entry;
use crate::stream::BlockStart;

/// How far training has come: all a checkpoint has to remember of the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// Groups consumed since the start; for data that can be reached by number, this is all there is to it.
    pub groups: u64,
    /// Of the data and the order it was made with: a cursor means nothing under another one.
    pub order: u64,
    /// One for each weighted source of a stream, or one for all.
    pub lanes: Vec<LaneCursor>,
}

/// Where one stream goes on: the block to read again, and how much of it was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneCursor {
    pub block: BlockStart,
    /// Groups of the block that were handed out.
    pub index: u64,
}

/// Where a sequence lies: in a store, or in a lane's block that is held.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Located {
    pub source: u32,
    pub block: u64,
    pub entry: Entry,
}

/// What a walk comes to next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// A group; [`Walk::group`] has its sequences.
    Group,
    /// There is one, but to hold it something of the window would have to go first.
    WindowFull,
    /// Only where one epoch was asked for.
    End,
}

pub(crate) enum Walk {
    Stored(StoredWalk),
    Streamed(StreamWalk),
}

impl Walk {
    /// Looks at the next group without taking it.
    pub(crate) fn peek(&mut self) -> Result<Next, DataError> {
        match self {
            Self::Stored(walk) => walk.peek(),
            Self::Streamed(walk) => walk.peek(),
        }
    }

    /// The sequences of the group looked at.
    pub(crate) fn group(&self) -> &[Located] {
        match self {
            Self::Stored(walk) => &walk.group,
            Self::Streamed(walk) => &walk.group,
        }
    }

    /// Takes the group looked at.
    pub(crate) fn advance(&mut self) {
        match self {
            Self::Stored(walk) => walk.advance(),
            Self::Streamed(walk) => walk.advance(),
        }
    }

    /// From here on sequences taken before need not be kept.
    pub(crate) fn begin_window(&mut self) {
        match self {
            Self::Stored(_) => {}
            Self::Streamed(walk) => walk.begin_window(),
        }
    }

    /// Behind the last group taken.
    pub(crate) fn cursor(&self) -> Cursor {
        match self {
            Self::Stored(walk) => walk.cursor(),
            Self::Streamed(walk) => walk.cursor(),
        }
    }

    pub(crate) fn seek(&mut self, cursor: &Cursor) -> Result<(), DataError> {
        match self {
            Self::Stored(walk) => walk.seek(cursor),
            Self::Streamed(walk) => walk.seek(cursor),
        }
    }

    /// Reads a sequence taken since the window began.
    pub(crate) fn read(&mut self, located: &Located, tokens: &mut [i32], targets: &mut [i32]) -> Result<(), DataError> {
        match self {
            Self::Stored(walk) => walk.read(located, tokens, targets),
            Self::Streamed(walk) => walk.read(located, tokens, targets),
        }
    }
}
