//! Rows in, groups out: reads ahead by a bounded number of rows, tokenises in worker threads, keeps the order.
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
use crate::read::{Files, ReadUpTo, Row, RowAt, RowReader};
use crate::store::{Group, Layout, Records};
use crate::tokenize::Tally;
use crate::tokenize::Tokenizer;
use crate::tokenize::{EncodedRow, Encoder};

/// Rows handed to the worker threads at a time: enough to keep them busy, little enough to hold.
const AHEAD_ROWS: usize = 512;
/// The same in bytes of text. A larger single row goes alone.
const AHEAD_BYTES: usize = 1 << 20;

/// What a producer may hold besides what it hands out: two such lots of rows as parsed text and one as tokens with their
/// masks, the reader's pages, and what each thread needs while it tokenises a row. Measured on Parquet with 20,000 rows
/// a group.
pub(crate) fn producer_bytes(workers: usize) -> u64 {
    (16 * AHEAD_BYTES + workers * (2 << 20)) as u64
}

/// A row on its way to the threads.
pub(crate) struct RawRow {
    pub at: RowAt,
    /// Which encoder it is for.
    pub encoder: usize,
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
    underway: Underway,
    pub tally: Tally,
    group: Group,
    /// `group` was taken back and is to be handed out again.
    returned: Option<Origin>,
}

/// What has been read and is not handed out yet.
struct Underway {
    /// Read, not yet tokenised.
    ahead: Vec<RawRow>,
    encoded: VecDeque<Encoded>,
    cutter: Cutter<RowAt>,
    over: bool,
}

/// The beginning of a source as groups, and all it takes to go on behind it: nothing is read or tokenised again.
pub(crate) struct Sampled {
    pub records: Records,
    /// The share of the source that has become groups.
    pub share: f64,
    underway: Underway,
    tally: Tally,
    read: ReadUpTo,
}

impl<'a> Producer<'a, Files<'a>> {
    /// Stops here. `records` are the groups handed out so far.
    pub(crate) fn pause(self, records: Records, share: f64) -> Sampled {
        let Self { reader, underway, tally, .. } = self;
        Sampled { records, share, underway, tally, read: reader.up_to() }
    }

    /// The share of the data that has become groups: what was read ahead has not yet.
    pub(crate) fn used_share(&self) -> f64 {
        let used = self.tally.counts.rows as f64 / self.reader.rows().max(1) as f64;
        self.reader.read_share() * used.min(1.0)
    }

    /// Goes on where another one has stopped; the groups it handed out are the caller's to take.
    pub(crate) fn go_on(&mut self, sampled: Sampled) -> Result<Records, DataError> {
        let Sampled { records, underway, tally, read, .. } = sampled;
        self.reader.go_on(&read)?;
        (self.underway, self.tally) = (underway, tally);
        Ok(records)
    }
}

impl<'a, S: RowReader> Producer<'a, S> {
    pub(crate) fn new(
        reader: S,
        encoders: Vec<Encoder<'a>>,
        tokenizer: &Tokenizer,
        options: &Options,
        pool: &'a ThreadPool,
    ) -> Self {
        let cutter = Cutter::new(options, tokenizer.bos_id(), Layout::of(tokenizer, options));
        Self {
            reader,
            encoders,
            pool,
            stop: None,
            underway: Underway { ahead: Vec::new(), encoded: VecDeque::new(), cutter, over: false },
            tally: Tally::new(options.bad_rows),
            group: Group::default(),
            returned: None,
        }
    }

    /// Goes on where `origin` was taken; the reader must begin with its row.
    pub(crate) fn resume(&mut self, origin: &Origin) {
        self.underway.cutter.resume(origin.skip as usize, origin.emitted);
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
            if self.underway.cutter.next(&mut self.group) {
                return Ok(Some(&self.group));
            }
            if let Some(next) = self.underway.encoded.pop_front() {
                self.take_in(next)?;
            } else if !self.refill()? {
                if std::mem::replace(&mut self.underway.over, true) {
                    return Ok(None);
                }
                self.tally.finish()?;
                self.tally.counts.other_side = self.reader.other_side();
                let last = self.underway.cutter.close(&mut self.group, &mut self.tally.counts);
                return Ok(last.then_some(&self.group));
            }
        }
    }

    fn take_in(&mut self, next: Encoded) -> Result<(), DataError> {
        match (next.row, &next.place) {
            (Ok(row), Some(place)) => self.underway.cutter.push(next.at, place, row, &mut self.tally.counts),
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
        let emitted = self.underway.cutter.emitted;
        let of_row = |at: RowAt| Origin { at, skip: 0, emitted };
        let in_stream = self.underway.cutter.origin().map(|(at, used)| Origin { at, skip: used as u32, emitted });
        let waiting = || self.underway.encoded.front().map(|row| of_row(row.at));
        in_stream.or_else(waiting).or_else(|| self.underway.ahead.first().map(|raw| of_row(raw.at)))
    }

    /// Takes back the group handed out last, which began at `origin`.
    pub(crate) fn give_back(&mut self, origin: Origin) {
        self.returned = Some(origin);
    }

    /// Tokenises what was read ahead while the next rows are read.
    fn refill(&mut self) -> Result<bool, DataError> {
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(DataError::Stopped);
        }
        if self.underway.ahead.is_empty() {
            self.underway.ahead = read_ahead(&mut self.reader);
        }
        let rows = std::mem::take(&mut self.underway.ahead);
        if rows.is_empty() {
            return Ok(false);
        }
        let (reader, encoders) = (&mut self.reader, &self.encoders[..]);
        // `collect` keeps the rows' order whatever the number of threads.
        let encode = || rows.into_par_iter().with_min_len(4).map(|raw| encode(raw, encoders)).collect::<Vec<_>>();
        let (encoded, ahead) = self.pool.install(|| rayon::join(encode, || read_ahead(reader)));
        self.underway.encoded.extend(encoded);
        self.underway.ahead = ahead;
        Ok(true)
    }

    /// Reads the first rows, so that `origin` tells where the data begins.
    pub(crate) fn prime(&mut self) {
        if self.underway.ahead.is_empty() && self.underway.encoded.is_empty() {
            self.underway.ahead = read_ahead(&mut self.reader);
        }
    }
}

fn encode(raw: RawRow, encoders: &[Encoder<'_>]) -> Encoded {
    match raw.row {
        Ok(row) => {
            let encoded = encoders[raw.encoder].encode(&row);
            Encoded { at: raw.at, place: Some(row.at), row: encoded }
        }
        Err(error) => Encoded { at: raw.at, place: None, row: Err(error) },
    }
}

/// Empty at the end of the data.
fn read_ahead(reader: &mut impl RowReader) -> Vec<RawRow> {
    let mut rows = Vec::new();
    let mut bytes = 0;
    while rows.len() < AHEAD_ROWS && bytes < AHEAD_BYTES {
        let Some(raw) = reader.next_row() else { break };
        bytes += raw.row.as_ref().map_or(0, |row| text_bytes(&row.columns));
        rows.push(raw);
    }
    rows
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
