//! What a dataset takes in memory: known of one that is there, foretold of one that is not made yet.

use std::sync::Arc;

use super::sources::{IntoSources, Sources};
use super::{Dataset, Options, Storage, StorageMode};
use crate::batch::{Capacity, MicroBatch, PerStream};
use crate::error::DataError;
use crate::feed::FeedOptions;
use crate::order::MIXTURE_BYTES;
use crate::store::{Layout, cache_reader_bytes};
use crate::tokenize::Tokenizer;

/// The memory of a dataset and of what reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Held as long as the dataset is.
    pub resident_bytes: u64,
    /// The most tokens a sequence may have in each stream.
    pub max_length: PerStream<usize>,
    reading_bytes: u64,
    layout: Layout,
}

impl Footprint {
    /// Of the dataset that would be made of these sources. Nothing is stored: what takes memory as rows are tokenised is
    /// judged by a sample, the rest is known. `buffer_bytes` is a stream's.
    pub fn forecast(
        sources: impl IntoSources,
        tokenizer: &Arc<Tokenizer>,
        options: &Options,
        mode: StorageMode,
        buffer_bytes: u64,
    ) -> Result<Self, DataError> {
        let mut sources: Sources = sources.into_sources(options)?;
        let layout = Layout::of(tokenizer, options);
        let max_length = options.max_lengths();
        let (resident_bytes, reading_bytes) = match mode {
            StorageMode::Memory => (sources.estimate(tokenizer, options)?, 0),
            StorageMode::Cached => (0, sources.opened.len() as u64 * cache_reader_bytes(&max_length, layout.format)),
            StorageMode::Streamed => {
                // Which rows are held out does not matter here, and finding it out takes a pass over all files.
                let options = Options { hold_out: None, ..options.clone() };
                return Ok(Dataset::streamed(sources, tokenizer.clone(), &options, buffer_bytes)?.footprint());
            }
        };
        let mixing_bytes = if sources.weights.is_some() { MIXTURE_BYTES } else { 0 };
        Ok(Self { resident_bytes, max_length, reading_bytes: reading_bytes + mixing_bytes, layout })
    }

    /// What a feed with these options takes besides: known before it starts.
    pub fn feed_bytes(&self, options: &FeedOptions) -> u64 {
        options.own_bytes(self.layout.group, self.layout.format.marked) + self.reading_bytes
    }

    /// What [`Dataset::sequential`] takes besides.
    pub fn sequential_bytes(&self, capacity: Capacity) -> u64 {
        let Layout { group, format, .. } = self.layout;
        MicroBatch::filled_bytes(&capacity, &self.max_length, group, format.marked) + self.reading_bytes
    }
}

impl Dataset {
    pub fn footprint(&self) -> Footprint {
        let (resident_bytes, reading_bytes, is_mixture) = match &self.storage {
            Storage::Stored(stored) => {
                let resident = stored.stores.iter().map(|store| store.resident_bytes()).sum();
                let readers =
                    stored.stores.iter().map(|store| store.reader_bytes(&self.max_length, self.layout.format));
                (resident, readers.sum::<u64>(), stored.weights.is_some())
            }
            Storage::Streamed { stream_sources, weights, .. } => {
                (0, stream_sources.iter().map(|source| source.planned_bytes()).sum(), weights.is_some())
            }
        };
        let mixing_bytes = if is_mixture { MIXTURE_BYTES } else { 0 };
        Footprint {
            resident_bytes,
            max_length: self.max_length,
            reading_bytes: reading_bytes + mixing_bytes,
            layout: self.layout,
        }
    }
}
