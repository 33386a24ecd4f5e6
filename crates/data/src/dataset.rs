//! Tokenised groups of sequences, wherever they are kept: in memory, in a cache file, or streamed from their files.

mod build;
mod options;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use build::shape_of;
pub(crate) use build::{open_parts, pool};
pub use options::{HoldOut, Options, OverLong, Progress, Task, Weighted};

use crate::error::DataError;
use crate::feed::FeedOptions;
use crate::mixture::MIXTURE_BYTES;
use crate::pack::{Capacity, MicroBatch};
use crate::read::{Row, Source};
use crate::record::Width;
use crate::sequential::{self, Sequential};
use crate::store::{Example, Extent};
use crate::stream::Lane;
use crate::tally::Summary;
use crate::tokenizer::Tokenizer;
use crate::walk::{Stored, StoredWalk, StreamWalk, Walk};

/// Cheap to clone: a handle.
#[derive(Clone)]
pub struct Dataset {
    kept: Kept,
    summary: Summary,
    /// `None` for a stream nobody has counted.
    extent: Option<Extent>,
    group: usize,
    max_length: usize,
    width: Width,
}

#[derive(Clone)]
enum Kept {
    Stored(Arc<Stored>),
    Streamed { lanes: Vec<Arc<Lane>>, weights: Option<Vec<f64>>, identity: u64 },
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = match &self.kept {
            Kept::Stored(stored) => format!("{} stores", stored.stores.len()),
            Kept::Streamed { lanes, .. } => format!("{} streams", lanes.len()),
        };
        f.debug_struct("Dataset").field("kept", &kept).field("extent", &self.extent).finish_non_exhaustive()
    }
}

/// Told while rows are tokenised.
pub type Observer<'a> = &'a mut dyn FnMut(&Progress);

impl Dataset {
    /// In memory, from files: for small data and tests.
    pub fn from_files<P: AsRef<Path>>(
        files: &[P],
        tokenizer: &Tokenizer,
        options: &Options,
    ) -> Result<Self, DataError> {
        let names: Vec<String> = files.iter().map(|file| file.as_ref().display().to_string()).collect();
        Self::in_memory(vec![Weighted::alone(Source::open(&names)?)], tokenizer, options, &mut |_| {})
    }

    /// In memory, from rows at hand. `origin` names them in messages.
    pub fn from_rows<I>(rows: I, origin: &str, tokenizer: &Tokenizer, options: &Options) -> Result<Self, DataError>
    where
        I: IntoIterator<Item = Result<Row, DataError>>,
        I::IntoIter: Send,
    {
        build::from_rows(rows.into_iter(), origin, tokenizer, options)
    }

    /// Tokenises everything into memory: about two bytes per token (four for vocabularies above 65,536) and 24 per
    /// sequence.
    pub fn in_memory(
        sources: Vec<Weighted>,
        tokenizer: &Tokenizer,
        options: &Options,
        observe: Observer<'_>,
    ) -> Result<Self, DataError> {
        build::in_memory(sources, tokenizer, options, observe)
    }

    /// Tokenises each source once into a file in `folder` and reads that from then on. A file that is already there is
    /// used if it was made from the same data, tokenizer and settings and is whole; else it is made again.
    pub fn cached(
        sources: Vec<Weighted>,
        tokenizer: &Tokenizer,
        options: &Options,
        folder: &Path,
        observe: Observer<'_>,
    ) -> Result<Self, DataError> {
        build::cached(sources, tokenizer, options, folder, observe)
    }

    /// Keeps nothing on disk: rows are tokenised while training, in blocks that fit `buffer_bytes`, and shuffled within
    /// them. How many groups there are is not known until [`Dataset::counted`] has read them all once.
    pub fn streamed(
        sources: Vec<Weighted>,
        tokenizer: Arc<Tokenizer>,
        options: &Options,
        buffer_bytes: u64,
    ) -> Result<Self, DataError> {
        build::streamed(sources, tokenizer, options, buffer_bytes)
    }

    /// The same dataset with its groups counted: for a stream, one pass over all rows.
    pub fn counted(mut self, observe: Observer<'_>) -> Result<Self, DataError> {
        if let (Kept::Streamed { lanes, .. }, None) = (&self.kept, &self.extent) {
            let (extent, counts) = build::count(lanes, observe)?;
            self.extent = Some(extent);
            self.summary.counts = counts;
        }
        Ok(self)
    }

    /// Sequences that only mean something together: 1, or 2 for pairs.
    pub fn group(&self) -> usize {
        self.group
    }

    /// `None` for a stream that was not counted.
    pub fn groups(&self) -> Option<u64> {
        self.sequences().map(|sequences| sequences / self.group as u64)
    }

    /// A pair has two. `None` for a stream that was not counted, as for the figures below.
    pub fn sequences(&self) -> Option<u64> {
        self.extent.map(|extent| extent.sequences)
    }

    pub fn total_tokens(&self) -> Option<u64> {
        self.extent.map(|extent| extent.tokens)
    }

    pub fn loss_tokens(&self) -> Option<u64> {
        self.extent.map(|extent| extent.loss_tokens)
    }

    /// The number of tokens of the longest sequence.
    pub fn longest(&self) -> Option<u64> {
        self.extent.map(|extent| extent.longest)
    }

    /// What became of the rows; for a stream that was not counted, nothing yet.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Rows a stream has left out since it was opened, each time it came by them.
    pub fn bad_rows_met(&self) -> u64 {
        match &self.kept {
            Kept::Stored(_) => self.summary.bad,
            Kept::Streamed { lanes, .. } => lanes.iter().map(|lane| lane.bad.load(Ordering::Relaxed)).sum(),
        }
    }

    /// What it holds now, before any feed.
    pub fn resident_bytes(&self) -> u64 {
        match &self.kept {
            Kept::Stored(stored) => stored.stores.iter().map(|store| store.resident_bytes()).sum(),
            Kept::Streamed { .. } => 0,
        }
    }

    /// What a feed with these options takes besides: known before it starts.
    pub fn feed_bytes(&self, options: &FeedOptions) -> u64 {
        options.own_bytes(self.group) + self.reading_bytes()
    }

    /// What [`Dataset::sequential`] takes besides.
    pub fn sequential_bytes(&self, capacity: Capacity) -> u64 {
        MicroBatch::bytes(capacity) + self.reading_bytes()
    }

    fn reading_bytes(&self) -> u64 {
        let (bytes, weighted) = match &self.kept {
            Kept::Stored(stored) => {
                let readers = stored.stores.iter().map(|store| store.reader_bytes(self.max_length, self.width));
                (readers.sum(), stored.weights.is_some())
            }
            Kept::Streamed { lanes, weights, .. } => {
                (lanes.iter().map(|lane| lane.planned_bytes()).sum::<u64>(), weights.is_some())
            }
        };
        bytes + if weighted { MIXTURE_BYTES } else { 0 }
    }

    /// Everything once, in the order of the files, in micro-batches.
    pub fn sequential(&self, capacity: Capacity) -> Result<Sequential, DataError> {
        Sequential::new(self, capacity, self.max_length)
    }

    /// The first `count` sequences.
    pub fn first(&self, count: usize) -> Result<Vec<Example>, DataError> {
        sequential::first(self, count)
    }

    /// A walk that ends soon after `stop` is set.
    pub(crate) fn walk(&self, seed: u64, shuffle: bool, stop: &Arc<AtomicBool>) -> Result<Walk, DataError> {
        Ok(match &self.kept {
            Kept::Stored(stored) => Walk::Stored(StoredWalk::new(stored.clone(), seed, shuffle)?),
            Kept::Streamed { lanes, weights, identity } => {
                Walk::Streamed(StreamWalk::new(lanes, weights.as_deref(), seed, shuffle, *identity, stop.clone())?)
            }
        })
    }

    pub(crate) fn walk_once(&self) -> Result<Walk, DataError> {
        Ok(match &self.kept {
            Kept::Stored(stored) => Walk::Stored(StoredWalk::once(stored.clone())),
            Kept::Streamed { lanes, .. } => Walk::Streamed(StreamWalk::once(lanes)?),
        })
    }
}
