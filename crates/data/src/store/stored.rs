//! Groups that can be reached by their number: in memory, or in a cache.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cache::{CacheFile, CacheReader, reader_bytes};
use super::record::{Entry, Layout, PerToken, RecordFormat, Records};
use crate::batch::STREAMS_MAX;
use crate::error::DataError;
use crate::order::mix;

/// One source's sequences.
pub(crate) enum Store {
    Memory(Arc<Records>),
    Cached(Arc<CacheFile>),
}

/// Sums over the sequences of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub sequences: u64,
    /// Of each stream.
    pub tokens: [u64; STREAMS_MAX],
    pub longest: [u64; STREAMS_MAX],
    pub loss_tokens: u64,
    /// A hash of all records in their order: the same data, wherever it is kept.
    pub content: u64,
}

impl Totals {
    pub(crate) fn of(records: &Records, streams: usize) -> Self {
        let mut totals = Self::default();
        totals.add(&records.entries, streams);
        totals
    }

    /// Adds sequences, each with an entry per stream.
    pub(crate) fn add(&mut self, entries: &[Entry], streams: usize) {
        for sequence in entries.chunks(streams) {
            self.sequences += 1;
            for (stream, entry) in sequence.iter().enumerate() {
                self.tokens[stream] += u64::from(entry.tokens);
                self.longest[stream] = self.longest[stream].max(u64::from(entry.tokens));
                self.loss_tokens += u64::from(entry.loss);
                let record = u64::from(entry.checksum) << 32 | u64::from(entry.bytes);
                self.content = mix(self.content ^ mix(record));
            }
        }
    }

    pub(crate) fn join(&mut self, other: &Totals) {
        self.sequences += other.sequences;
        self.loss_tokens += other.loss_tokens;
        self.content = mix(self.content ^ mix(other.content));
        for stream in 0..STREAMS_MAX {
            self.tokens[stream] += other.tokens[stream];
            self.longest[stream] = self.longest[stream].max(other.longest[stream]);
        }
    }
}

impl Store {
    pub(crate) fn totals(&self, streams: usize) -> Totals {
        match self {
            Self::Memory(records) => Totals::of(records, streams),
            Self::Cached(cache) => cache.header.totals,
        }
    }

    /// Sequences, counted from the index alone.
    pub(crate) fn sequences(&self, streams: usize) -> u64 {
        match self {
            Self::Memory(records) => (records.entries.len() / streams) as u64,
            Self::Cached(cache) => cache.header.totals.sequences,
        }
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        match self {
            Self::Memory(records) => records.resident_bytes(),
            Self::Cached(_) => 0,
        }
    }

    /// What a reader takes besides.
    pub(crate) fn reader_bytes(&self, max_length: &[usize], format: RecordFormat) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Cached(_) => reader_bytes(max_length, format),
        }
    }

    pub(crate) fn reader(&self, layout: Layout) -> StoreReader {
        match self {
            Self::Memory(records) => StoreReader::Memory(records.clone(), layout.format),
            Self::Cached(cache) => StoreReader::Cached(CacheReader::new(cache.clone(), layout.format)),
        }
    }
}

/// Reads one store, with buffers of its own.
pub(crate) enum StoreReader {
    Memory(Arc<Records>, RecordFormat),
    Cached(CacheReader),
}

impl StoreReader {
    pub(crate) fn entry(&mut self, record: u64) -> Result<Entry, DataError> {
        match self {
            Self::Memory(records, _) => Ok(records.entries[record as usize]),
            Self::Cached(reader) => reader.entry(record),
        }
    }

    pub(crate) fn read(
        &mut self,
        entry: &Entry,
        tokens: &mut [i32],
        beside: Option<PerToken<'_>>,
    ) -> Result<Option<i32>, DataError> {
        match self {
            Self::Memory(records, format) => {
                records.read(entry, *format, tokens, beside).map_err(|_| DataError::Malformed)
            }
            Self::Cached(reader) => reader.read(entry, tokens, beside),
        }
    }
}
