//! What a dataset is made of and how.

use crate::format::Format;
use crate::read::Source;
use crate::tokenize::BadRows;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Texts in one stream, cut into sequences; every token bears loss.
    Text,
    /// One example per row; answers bear loss.
    Answers,
    /// Two sequences per row, the preferred one first; no token bears loss of its own.
    Pairs,
}

impl Content {
    /// Sequences that only mean something together.
    pub(crate) fn group(self) -> usize {
        if self == Content::Pairs { 2 } else { 1 }
    }
}

/// What to do with a row that has more tokens than `max_length` (not with `Content::Text`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OverLong {
    #[default]
    Error,
    /// Keep its beginning; where no answer is left in it, leave the row out. Pairs keep their answers instead, and lose
    /// the beginning of the prompt; where the answers alone are too long, leave the row out.
    Truncate,
    Skip,
}

/// Threads that tokenise, where nobody says: each takes memory, and more than this no reader keeps busy.
const WORKERS_MAX: usize = 16;

/// One side of a division of the rows: every n-th is held out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldOut {
    pub every: u64,
    /// The rows held out, or all the others.
    pub held: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct Options {
    pub content: Content,
    pub format: Format,
    pub max_length: usize,
    pub over_long: OverLong,
    pub bad_rows: BadRows,
    pub hold_out: Option<HoldOut>,
    /// Threads that tokenise. The result does not depend on them.
    pub workers: usize,
}

impl Options {
    pub fn new(content: Content, max_length: usize) -> Self {
        Self {
            content,
            format: Format::Auto,
            max_length,
            over_long: OverLong::default(),
            bad_rows: BadRows::default(),
            hold_out: None,
            workers: std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX),
        }
    }
}

/// A source of a mixture. Without weights, sources are read as one and every row comes once per epoch; with them, each
/// source gives its share of the groups and has epochs of its own.
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
