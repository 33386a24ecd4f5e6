//! Groups that can be reached by their number: in memory, or in a cache.

use std::sync::Arc;

use super::cache::{CacheFile, CacheReader, reader_bytes};
use super::record::{Entry, Records, Width};
use crate::NO_LOSS;
use crate::error::DataError;

/// A sequence and, for each position, the token that comes next or [`NO_LOSS`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Example {
    pub tokens: Vec<u32>,
    pub targets: Vec<i32>,
}

/// An example borrowed from where it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExampleRef<'a> {
    pub tokens: &'a [u32],
    pub targets: &'a [i32],
}

impl Example {
    pub fn view(&self) -> ExampleRef<'_> {
        ExampleRef { tokens: &self.tokens, targets: &self.targets }
    }
}

impl ExampleRef<'_> {
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub fn loss_tokens(&self) -> usize {
        count_loss(self.targets)
    }
}

pub(crate) fn count_loss(targets: &[i32]) -> usize {
    targets.iter().filter(|&&target| target != NO_LOSS).count()
}

/// One source's sequences.
pub(crate) enum Store {
    Memory(Arc<Records>),
    Cached(Arc<CacheFile>),
}

/// What is known about a store as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Totals {
    pub sequences: u64,
    pub tokens: u64,
    pub loss_tokens: u64,
    pub longest: u64,
}

impl Totals {
    pub(crate) fn of(records: &Records) -> Self {
        let mut totals = Self::default();
        records.entries.iter().for_each(|entry| totals.add(entry));
        totals
    }

    pub(crate) fn add(&mut self, entry: &Entry) {
        self.sequences += 1;
        self.tokens += u64::from(entry.tokens);
        self.loss_tokens += u64::from(entry.loss);
        self.longest = self.longest.max(u64::from(entry.tokens));
    }

    pub(crate) fn join(&mut self, other: &Totals) {
        self.sequences += other.sequences;
        self.tokens += other.tokens;
        self.loss_tokens += other.loss_tokens;
        self.longest = self.longest.max(other.longest);
    }
}

impl Store {
    pub(crate) fn totals(&self) -> Totals {
        match self {
            Self::Memory(records) => Totals::of(records),
            Self::Cached(cache) => Totals {
                sequences: cache.header.sequences,
                tokens: cache.header.tokens,
                loss_tokens: cache.header.loss_tokens,
                longest: cache.header.longest,
            },
        }
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        match self {
            Self::Memory(records) => records.resident_bytes(),
            Self::Cached(_) => 0,
        }
    }

    /// What a reader takes besides.
    pub(crate) fn reader_bytes(&self, max_length: usize, width: Width) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Cached(_) => reader_bytes(max_length, width),
        }
    }

    pub(crate) fn reader(&self, width: Width) -> StoreReader {
        match self {
            Self::Memory(records) => StoreReader::Memory(records.clone(), width),
            Self::Cached(cache) => StoreReader::Cached(CacheReader::new(cache.clone(), width)),
        }
    }
}

/// Reads one store, with buffers of its own.
pub(crate) enum StoreReader {
    Memory(Arc<Records>, Width),
    Cached(CacheReader),
}

impl StoreReader {
    pub(crate) fn entry(&mut self, sequence: u64) -> Result<Entry, DataError> {
        match self {
            Self::Memory(records, _) => Ok(records.entries[sequence as usize]),
            Self::Cached(reader) => reader.entry(sequence),
        }
    }

    pub(crate) fn read(&mut self, entry: &Entry, tokens: &mut [i32], targets: &mut [i32]) -> Result<(), DataError> {
        match self {
            Self::Memory(records, width) => {
                records.read(entry, *width, tokens, targets).map_err(|_| DataError::Malformed)
            }
            Self::Cached(reader) => reader.read(entry, tokens, targets),
        }
    }
}
