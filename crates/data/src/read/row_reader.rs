//! Where rows come from: files, unit after unit in an order of their own, or a list.

use serde::{Deserialize, Serialize};

use crate::dataset::Options;
use crate::error::DataError;
use crate::format::RowFormat;
use crate::order::Permutation;
use crate::read::{HoldOut, Position, Row, Rows, Source};
use crate::tokenize::{Encoder, RawRow, Sampled, Tokenizer};

/// A row's place in the order of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowAt {
    /// How many units come before this one in the epoch's order.
    pub turn: u64,
    pub position: Position,
}

pub(crate) trait RowReader: Send {
    /// `None` at the end. An error that is no bad row is the last item.
    fn next_row(&mut self) -> Option<RawRow>;

    /// How much of the data has been read, 0 to 1; 0 where that is not known.
    fn read_share(&self) -> f64;

    /// Rows passed over because they are the other side's (`HoldOut`).
    fn other_side(&self) -> u64;
}

/// What the rows of some files of a source are.
#[derive(Debug, Clone)]
pub(crate) struct FileFormat {
    pub format: RowFormat,
    /// Whether that row is written by a chat template, whatever the tokenizer has.
    pub conversation: bool,
    /// The first usable row in words, for people: the format and its columns.
    pub explained: String,
    /// What the user is told they are in: the source if it has one format, else the first file of this one.
    pub name: String,
}

/// A source and what its rows are.
pub(crate) struct OpenedSource {
    pub source: Source,
    /// At least one; files that are read alike share one.
    pub formats: Vec<FileFormat>,
    /// Of each file, the index of its format.
    pub format_of: Vec<u32>,
    /// Its beginning as groups, where that has been tokenised already.
    pub sample: Option<Box<Sampled>>,
}

impl OpenedSource {
    /// The same source for another dataset.
    pub(crate) fn share(&self) -> Self {
        let (source, formats) = (self.source.clone(), self.formats.clone());
        Self { source, formats, format_of: self.format_of.clone(), sample: None }
    }

    /// One for each of its formats.
    pub(crate) fn encoders<'a>(
        &self,
        tokenizer: &'a Tokenizer,
        options: &Options,
    ) -> Result<Vec<Encoder<'a>>, DataError> {
        self.formats.iter().map(|of_file| Encoder::new(tokenizer, of_file.format, options)).collect()
    }
}

/// The units of all sources, in an order.
pub(crate) struct Files<'a> {
    opened: &'a [OpenedSource],
    order: Permutation,
    units: u64,
    hold_out: Option<HoldOut>,
    /// The next unit to open.
    turn: u64,
    open: Option<OpenUnit<'a>>,
    /// Of the units that are finished.
    bytes_done: u64,
    bytes_total: u64,
    /// Handed out.
    rows: u64,
    /// Passed over.
    other_side: u64,
    failed: bool,
}

struct OpenUnit<'a> {
    source: usize,
    unit: u32,
    /// Among the encoders of all sources.
    encoder: usize,
    /// Readable rows of the source before the unit; only known where rows are held out.
    rows_before: u64,
    rows: Rows<'a>,
}

/// Where reading was interrupted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadUpTo {
    next: RowAt,
    bytes_done: u64,
    rows: u64,
    other_side: u64,
    failed: bool,
}

impl<'a> Files<'a> {
    /// In the order of the files.
    pub(crate) fn in_order(opened: &'a [OpenedSource], hold_out: Option<HoldOut>) -> Self {
        Self::new(opened, Permutation::identity(units(opened)), hold_out)
    }

    pub(crate) fn new(opened: &'a [OpenedSource], order: Permutation, hold_out: Option<HoldOut>) -> Self {
        let bytes_total = opened.iter().map(|opened| opened.source.bytes()).sum();
        let units = units(opened);
        Self {
            opened,
            order,
            units,
            hold_out,
            turn: 0,
            open: None,
            bytes_done: 0,
            bytes_total,
            rows: 0,
            other_side: 0,
            failed: false,
        }
    }

    /// Goes on from a row.
    pub(crate) fn seek(&mut self, at: &RowAt) -> Result<(), DataError> {
        self.open = None;
        self.turn = at.turn;
        // At the end of an epoch there is no unit to open.
        if at.turn < self.units {
            let (_, unit) = self.unit_at(at.turn);
            self.open = Some(self.open_at(at.turn, Position { unit, ..at.position })?);
            self.turn += 1;
        }
        Ok(())
    }

    /// Where a reader of the same files can go on.
    pub(crate) fn up_to(&self) -> ReadUpTo {
        let next = match &self.open {
            Some(open) => RowAt { turn: self.turn - 1, position: Rows::position(&open.rows) },
            None => RowAt { turn: self.turn, position: Position::default() },
        };
        let Self { bytes_done, rows, other_side, failed, .. } = *self;
        ReadUpTo { next, bytes_done, rows, other_side, failed }
    }

    pub(crate) fn go_on(&mut self, from: &ReadUpTo) -> Result<(), DataError> {
        (self.bytes_done, self.rows, self.failed) = (from.bytes_done, from.rows, from.failed);
        self.other_side = from.other_side;
        if self.failed { Ok(()) } else { self.seek(&from.next) }
    }

    fn unit_at(&self, turn: u64) -> (usize, u32) {
        let mut unit = self.order.at(turn) as usize;
        for (index, OpenedSource { source, .. }) in self.opened.iter().enumerate() {
            if unit < source.units() {
                return (index, unit as u32);
            }
            unit -= source.units();
        }
        unreachable!("the order has as many units as the opened")
    }

    /// Opens the unit whose turn it is at `position`.
    fn open_at(&self, turn: u64, position: Position) -> Result<OpenUnit<'a>, DataError> {
        let (index, unit) = self.unit_at(turn);
        let OpenedSource { source, format_of, .. } = &self.opened[index];
        let before: usize = self.opened[..index].iter().map(|opened| opened.formats.len()).sum();
        let encoder = before + format_of[source.file_of(unit)] as usize;
        let rows_before = if self.hold_out.is_some() { source.rows_before(unit)? } else { 0 };
        Ok(OpenUnit { source: index, unit, encoder, rows_before, rows: source.rows_from(position)? })
    }

    fn open_next(&mut self) -> Result<bool, DataError> {
        if let Some(OpenUnit { source, unit, rows, .. }) = self.open.take() {
            self.bytes_done += rows.bytes_read();
            self.opened[source].source.record_rows(unit, Rows::position(&rows).index);
        }
        if self.turn >= self.units {
            return Ok(false);
        }
        let (index, unit) = self.unit_at(self.turn);
        let start = self.opened[index].source.start(unit as usize);
        self.open = Some(self.open_at(self.turn, start)?);
        self.turn += 1;
        Ok(true)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Of the files on disk.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_done + self.open.as_ref().map_or(0, |open| open.rows.bytes_read())
    }
}

pub(crate) fn units(opened: &[OpenedSource]) -> u64 {
    opened.iter().map(|opened| opened.source.units() as u64).sum()
}

impl RowReader for Files<'_> {
    fn next_row(&mut self) -> Option<RawRow> {
        if self.failed {
            return None;
        }
        loop {
            if let Some(OpenUnit { encoder, rows_before, rows, .. }) = &mut self.open {
                // By its full name: iterators have a method of that name too.
                let position = Rows::position(rows);
                if let Some(row) = rows.next() {
                    self.failed = row.as_ref().is_err_and(|error| !error.is_bad_row());
                    if !self.failed && !side_takes(self.hold_out, *rows_before + position.index, row.is_err()) {
                        self.other_side += u64::from(row.is_ok());
                        continue;
                    }
                    self.rows += 1;
                    return Some(RawRow { at: RowAt { turn: self.turn - 1, position }, encoder: *encoder, row });
                }
            }
            match self.open_next() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.failed = true;
                    let at = RowAt { turn: self.turn, position: Position::default() };
                    return Some(RawRow { at, encoder: 0, row: Err(error) });
                }
            }
        }
    }

    fn read_share(&self) -> f64 {
        if self.bytes_total == 0 { 1.0 } else { self.bytes_read() as f64 / self.bytes_total as f64 }
    }

    fn other_side(&self) -> u64 {
        self.other_side
    }
}

/// Bad rows have no number; they are counted on the training side.
fn side_takes(hold_out: Option<HoldOut>, row: u64, bad: bool) -> bool {
    hold_out.is_none_or(|hold| if bad { !hold.held } else { hold.takes(row) })
}

/// Rows that are at hand.
pub(crate) struct Listed<I> {
    rows: I,
    hold_out: Option<HoldOut>,
    taken: u64,
    /// Readable ones among them.
    readable: u64,
    other_side: u64,
}

impl<I> Listed<I> {
    pub(crate) fn new(rows: I, hold_out: Option<HoldOut>) -> Self {
        Self { rows, hold_out, taken: 0, readable: 0, other_side: 0 }
    }
}

impl<I: Iterator<Item = Result<Row, DataError>> + Send> RowReader for Listed<I> {
    fn next_row(&mut self) -> Option<RawRow> {
        loop {
            let row = self.rows.next()?;
            let position = Position { row: self.taken, index: self.readable, ..Position::default() };
            self.taken += 1;
            self.readable += u64::from(row.is_ok());
            if side_takes(self.hold_out, position.index, row.is_err()) {
                return Some(RawRow { at: RowAt { turn: 0, position }, encoder: 0, row });
            }
            self.other_side += u64::from(row.is_ok());
        }
    }

    /// Nobody knows how many are to come.
    fn read_share(&self) -> f64 {
        0.0
    }

    fn other_side(&self) -> u64 {
        self.other_side
    }
}
