//! Rows in, groups out: reads ahead by a bounded chunk, tokenises in worker threads, keeps the order.
//!
//! One mechanism under all kinds of datasets: what is built in memory or into a cache, and what is streamed, are the same
//! groups in the same order whatever the number of threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::ThreadPool;
use rayon::prelude::*;
use serde_json::{Map, Value};

use super::cut::Cutter;
use crate::dataset::Options;
use crate::error::{DataError, Place};
use crate::read::Row;
use crate::read::{RowAt, RowReader};
use crate::store::{Group, Width};
use crate::tokenize::Tally;
use crate::tokenize::Tokenizer;
use crate::tokenize::{EncodedRow, Encoder};

/// Rows handed to the worker threads at a time: enough to keep them busy, little enough to hold.
const CHUNK_ROWS: usize = 512;
/// The same in bytes of text. A larger single row is a chunk of its own.
const CHUNK_BYTES: usize = 1 << 20;

/// What a producer may hold besides what it hands out: two chunks of rows as parsed text and one as tokens with their masks,
/// the reader's pages, and what each thread needs while it tokenises a row. Measured on Parquet with 20,000 rows a group.
pub(crate) fn producer_bytes(workers: usize) -> u64 {
    (16 * CHUNK_BYTES + workers * (2 << 20)) as u64
}

/// A row on its way to the threads.
pub(crate) struct RawRow {
    pub at: RowAt,
    /// Which encoder it is for.
    pub source: usize,
    pub row: Result<Row, DataError>,
}

struct Encoded {
    at: RowAt,
    /// `None` for a row that could not even be read; its error says where.
    place: Option<Place>,
    row: Result<EncodedRow, DataError>,
}

/// Where a group begins: enough to go on from it as if nothing had been interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub at: RowAt,
    /// Tokens of that row that belong to groups before.
    pub skip: u32,
    /// Groups of the epoch before it.
    pub emitted: u64,
}

pub(crate) struct Producer<'a, S> {
    reader: S,
    encoders: Vec<Encoder<'a>>,
    pool: &'a ThreadPool,
    stop: Option<&'a AtomicBool>,
    /// Read, not yet tokenised.
    ahead: Vec<RawRow>,
    encoded: VecDeque<Encoded>,
    cutter: Cutter<RowAt>,
    pub tally: Tally,
    group: Group,
    /// `group` was taken back and is to be handed out again.
    returned: Option<Origin>,
    over: bool,
}

impl<'a, S: RowReader> Producer<'a, S> {
    pub(crate) fn new(
        reader: S,
        encoders: Vec<Encoder<'a>>,
        tokenizer: &Tokenizer,
        options: &Options,
        pool: &'a ThreadPool,
    ) -> Self {
        Self {
            reader,
            encoders,
            pool,
            stop: None,
            ahead: Vec::new(),
            encoded: VecDeque::new(),
            cutter: Cutter::new(options, tokenizer.bos_id(), Width::of(tokenizer.vocab_size())),
            tally: Tally::new(options.bad_rows),
            group: Group::default(),
            returned: None,
            over: false,
        }
    }

    /// Goes on where `origin` was taken; the reader must begin with its row.
    pub(crate) fn resume(&mut self, origin: &Origin) {
        self.cutter.resume(origin.skip as usize, origin.emitted);
    }

    /// Gives up with `DataError::Stopped` soon after `stop` is set.
    pub(crate) fn stop_with(&mut self, stop: &'a AtomicBool) {
        self.stop = Some(stop);
    }

    pub(crate) fn reader(&self) -> &S {
        &self.reader
    }

    /// The next group; `None` at the end of the rows.
    pub(crate) fn next_group(&mut self) -> Result<Option<&Group>, DataError> {
        if self.returned.take().is_some() {
            return Ok(Some(&self.group));
        }
        loop {
            if self.cutter.next(&mut self.group) {
                return Ok(Some(&self.group));
            }
            if let Some(next) = self.encoded.pop_front() {
                self.take_in(next)?;
            } else if !self.refill()? {
                if std::mem::replace(&mut self.over, true) {
                    return Ok(None);
                }
                self.tally.finish()?;
                let last = self.cutter.close(&mut self.group, &mut self.tally.counts);
                return Ok(last.then_some(&self.group));
            }
        }
    }

    fn take_in(&mut self, next: Encoded) -> Result<(), DataError> {
        match (next.row, &next.place) {
            (Ok(row), Some(place)) => self.cutter.push(next.at, place, row, &mut self.tally.counts),
            (Err(error), _) if error.is_bad_row() => self.tally.bad(error, self.reader.read_share()),
            (Err(error), _) => Err(error),
            (Ok(_), None) => Ok(()),
        }
    }

    /// Where the next group begins; `None` at the end.
    pub(crate) fn origin(&self) -> Option<Origin> {
        if self.returned.is_some() {
            return self.returned;
        }
        let emitted = self.cutter.emitted;
        let of_row = |at: RowAt| Origin { at, skip: 0, emitted };
        let in_stream = self.cutter.origin().map(|(at, used)| Origin { at, skip: used as u32, emitted });
        let waiting = || self.encoded.front().map(|row| of_row(row.at));
        in_stream.or_else(waiting).or_else(|| self.ahead.first().map(|raw| of_row(raw.at)))
    }

    /// Takes back the group handed out last, which began at `origin`.
    pub(crate) fn give_back(&mut self, origin: Origin) {
        self.returned = Some(origin);
    }

    /// Tokenises what was read ahead while the next chunk is read.
    fn refill(&mut self) -> Result<bool, DataError> {
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(DataError::Stopped);
        }
        if self.ahead.is_empty() {
            self.ahead = read_chunk(&mut self.reader);
        }
        let chunk = std::mem::take(&mut self.ahead);
        if chunk.is_empty() {
            return Ok(false);
        }
        let (reader, encoders) = (&mut self.reader, &self.encoders[..]);
        // `collect` keeps the rows' order whatever the number of threads.
        let encode = || chunk.into_par_iter().with_min_len(4).map(|raw| encode(raw, encoders)).collect::<Vec<_>>();
        let (encoded, ahead) = self.pool.install(|| rayon::join(encode, || read_chunk(reader)));
        self.encoded.extend(encoded);
        self.ahead = ahead;
        Ok(true)
    }

    /// Reads the first chunk, so that `origin` tells where the data begins.
    pub(crate) fn prime(&mut self) {
        if self.ahead.is_empty() && self.encoded.is_empty() {
            self.ahead = read_chunk(&mut self.reader);
        }
    }
}

fn encode(raw: RawRow, encoders: &[Encoder<'_>]) -> Encoded {
    match raw.row {
        Ok(row) => {
            let encoded = encoders[raw.source].encode(&row);
            Encoded { at: raw.at, place: Some(row.at), row: encoded }
        }
        Err(error) => Encoded { at: raw.at, place: None, row: Err(error) },
    }
}

/// Empty at the end of the data.
fn read_chunk(reader: &mut impl RowReader) -> Vec<RawRow> {
    let mut chunk = Vec::new();
    let mut bytes = 0;
    while chunk.len() < CHUNK_ROWS && bytes < CHUNK_BYTES {
        let Some(raw) = reader.next_row() else { break };
        bytes += raw.row.as_ref().map_or(0, |row| text_bytes(&row.columns));
        chunk.push(raw);
    }
    chunk
}

fn text_bytes(columns: &Map<String, Value>) -> usize {
    fn of(value: &Value) -> usize {
        match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(of).sum(),
            Value::Object(fields) => text_bytes(fields),
            _ => 8,
        }
    }
    columns.values().map(of).sum()
}
