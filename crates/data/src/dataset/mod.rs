//! Tokenised groups of sequences, wherever they are stored: in memory, in a cache file, or streamed from their files.

mod build;
mod choose;
mod footprint;
mod options;
mod sources;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use choose::{Choice, Limits, StorageMode, choose};
pub use footprint::Footprint;
pub use options::{Options, OverLong, Progress, Weighted};
pub use sources::{IntoSources, Sources};

use crate::batch::{Capacity, PerStream};
use crate::error::DataError;
use crate::feed::{self, Sequential};
use crate::order::{Iteration, Stored, StoredIteration, StreamIteration};
use crate::read::{HoldOut, Row, Source};
use crate::store::{Example, Layout, StreamSource, Totals};
use crate::tokenize::Summary;
use crate::tokenize::Tokenizer;

/// Cheap to clone: a handle.
#[derive(Clone)]
pub struct Dataset {
    storage: Storage,
    summary: Summary,
    /// `None` for a stream nobody has counted.
    totals: Option<Totals>,
    layout: Layout,
    max_length: PerStream<usize>,
    hold_out: Option<HoldOut>,
}

#[derive(Clone)]
enum Storage {
    Stored(Arc<Stored>),
    Streamed { stream_sources: Vec<Arc<StreamSource>>, weights: Option<Vec<f64>>, identity: u64 },
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stores = match &self.storage {
            Storage::Stored(stored) => format!("{} stores", stored.stores.len()),
            Storage::Streamed { stream_sources, .. } => format!("{} streams", stream_sources.len()),
        };
        f.debug_struct("Dataset").field("storage", &stores).field("totals", &self.totals).finish_non_exhaustive()
    }
}

/// Called while rows are tokenised.
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
        sources: impl IntoSources,
        tokenizer: &Tokenizer,
        options: &Options,
        observe: Observer<'_>,
    ) -> Result<Self, DataError> {
        build::in_memory(sources.into_sources(options)?, tokenizer, options, observe)
    }

    /// Tokenises each source once into a file in `folder` and reads that from then on. A file that is already there is
    /// used if it was made from the same data, tokenizer and settings and is whole; else it is made again.
    pub fn cached(
        sources: impl IntoSources,
        tokenizer: &Tokenizer,
        options: &Options,
        folder: &Path,
        observe: Observer<'_>,
    ) -> Result<Self, DataError> {
        build::cached(sources.into_sources(options)?, tokenizer, options, folder, observe)
    }

    /// Stores nothing on disk: rows are tokenised while training, in chunks that fit `buffer_bytes`, and shuffled within
    /// them. How many groups there are is not known until [`Dataset::counted`] has read them all once.
    pub fn streamed(
        sources: impl IntoSources,
        tokenizer: Arc<Tokenizer>,
        options: &Options,
        buffer_bytes: u64,
    ) -> Result<Self, DataError> {
        build::streamed(sources.into_sources(options)?, tokenizer, options, buffer_bytes)
    }

    /// The same dataset with its groups counted: for a stream, one pass over all rows.
    pub fn counted(mut self, observe: Observer<'_>) -> Result<Self, DataError> {
        if let (Storage::Streamed { stream_sources, .. }, None) = (&self.storage, &self.totals) {
            let (totals, counts) = build::count(stream_sources, observe)?;
            self.totals = Some(totals);
            self.summary.counts = counts;
        }
        Ok(self)
    }

    /// Sequences that only mean something together: 1, or 2 for pairs.
    pub fn group(&self) -> usize {
        self.layout.group
    }

    /// Whether some tokens have a number of their own.
    pub(crate) fn has_marks(&self) -> bool {
        self.layout.format.marked
    }

    /// Streams of tokens: 1, or 2 for sources and targets.
    pub fn streams(&self) -> usize {
        self.layout.streams
    }

    /// The most tokens a sequence may have in each stream.
    pub fn max_length(&self) -> PerStream<usize> {
        self.max_length
    }

    /// `None` for a stream that was not counted.
    pub fn groups(&self) -> Option<u64> {
        self.sequences().map(|sequences| sequences / self.layout.group as u64)
    }

    /// A pair has two. `None` for a stream that was not counted, as for the figures below.
    pub fn sequences(&self) -> Option<u64> {
        self.totals.map(|totals| totals.sequences)
    }

    /// Of the main stream.
    pub fn total_tokens(&self) -> Option<u64> {
        self.totals.map(|totals| totals.tokens[0])
    }

    /// Of the stream that the main one is conditioned on.
    pub fn source_tokens(&self) -> Option<u64> {
        self.totals.map(|totals| totals.tokens[1])
    }

    pub fn loss_tokens(&self) -> Option<u64> {
        self.totals.map(|totals| totals.loss_tokens)
    }

    /// The number of tokens of the longest sequence in the main stream.
    pub fn longest(&self) -> Option<u64> {
        self.totals.map(|totals| totals.longest[0])
    }

    /// The same of the source stream.
    pub fn longest_source(&self) -> Option<u64> {
        self.totals.map(|totals| totals.longest[1])
    }

    /// What became of the rows; for a stream that was not counted, nothing yet.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Of a divided source, which side this is.
    pub fn hold_out(&self) -> Option<HoldOut> {
        self.hold_out
    }

    /// Rows a stream has left out since it was opened, each time it came by them.
    pub fn bad_rows_met(&self) -> u64 {
        match &self.storage {
            Storage::Stored(_) => self.summary.bad,
            Storage::Streamed { stream_sources, .. } => {
                stream_sources.iter().map(|stream_source| stream_source.bad.load(Ordering::Relaxed)).sum()
            }
        }
    }

    /// Everything once, in the order of the files, in micro-batches.
    pub fn sequential(&self, capacity: Capacity) -> Result<Sequential, DataError> {
        Sequential::new(self, capacity)
    }

    /// The first `count` sequences.
    pub fn first(&self, count: usize) -> Result<Vec<Example>, DataError> {
        feed::first(self, count)
    }

    /// An iteration that ends soon after `stop` is set.
    pub(crate) fn iterate(&self, seed: u64, shuffle: bool, stop: &Arc<AtomicBool>) -> Result<Iteration, DataError> {
        Ok(match &self.storage {
            Storage::Stored(stored) => Iteration::Stored(StoredIteration::new(stored.clone(), seed, shuffle)?),
            Storage::Streamed { stream_sources, weights, identity } => Iteration::Streamed(StreamIteration::new(
                stream_sources,
                weights.as_deref(),
                seed,
                shuffle,
                *identity,
                stop.clone(),
            )?),
        })
    }

    pub(crate) fn iterate_once(&self) -> Result<Iteration, DataError> {
        Ok(match &self.storage {
            Storage::Stored(stored) => Iteration::Stored(StoredIteration::once(stored.clone())),
            Storage::Streamed { stream_sources, .. } => Iteration::Streamed(StreamIteration::once(stream_sources)?),
        })
    }
}
