//! What a dataset is made of and how.

use crate::batch::PerStream;
use crate::content::Content;
use crate::format::{Classes, ColumnNames, Format};
use crate::read::{HoldOut, Source};
use crate::tokenize::BadRows;

/// What to do with a row that has more tokens than `max_length` (not with `Content::Text`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverLong {
    #[default]
    Error,
    /// Keep its beginning; where no answer is left in it, leave the row out. Pairs keep their answers instead, and lose
    /// the beginning of the prompt; where the answers alone are too long, leave the row out. A source keeps its end of
    /// sequence too.
    Truncate,
    Skip,
}

/// Threads that tokenise, where nobody says: each takes memory, and more than this no reader keeps busy.
const WORKERS_MAX: usize = 16;

#[derive(Debug, Clone)]
pub struct Options {
    pub content: Content,
    pub format: Format,
    /// Columns that are called otherwise.
    pub columns: ColumnNames,
    /// The most tokens of a sequence.
    pub max_length: usize,
    /// The most tokens of a source (`Content::SourceTarget`).
    pub max_source_length: usize,
    /// The classes that labels may name (`Content::Labelled`).
    pub classes: Classes,
    pub over_long: OverLong,
    pub bad_rows: BadRows,
    /// One side of a division of the rows. Of several sources each is divided by itself.
    pub hold_out: Option<HoldOut>,
    /// The most that [`crate::Dataset::in_memory`] may hold: reached, it is an error.
    pub memory_bytes_max: Option<u64>,
    /// Threads that tokenise. The result does not depend on them.
    pub workers: usize,
}

impl Options {
    pub fn new(content: Content, max_length: usize) -> Self {
        Self {
            content,
            format: Format::Auto,
            columns: ColumnNames::default(),
            max_length,
            max_source_length: max_length,
            classes: Classes::default(),
            over_long: OverLong::default(),
            bad_rows: BadRows::default(),
            hold_out: None,
            memory_bytes_max: None,
            workers: std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX),
        }
    }

    /// The most tokens of a sequence in each stream.
    pub fn max_lengths(&self) -> PerStream<usize> {
        match self.content.streams() {
            1 => PerStream::single(self.max_length),
            _ => PerStream::with_source(self.max_length, self.max_source_length),
        }
    }
}

/// A source of a mixture. Without weights, sources are read as one and every row comes once per epoch; with them, each
/// source gives its share of the groups and has epochs of its own.
#[derive(Clone)]
pub struct Weighted {
    pub source: Source,
    pub weight: Option<f64>,
}

impl Weighted {
    /// A source that needs no weight.
    pub fn alone(source: Source) -> Self {
        Self { source, weight: None }
    }
}

/// How far tokenising has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    pub rows: u64,
    /// Of the files on disk.
    pub bytes_read: u64,
    pub bytes_total: u64,
}
