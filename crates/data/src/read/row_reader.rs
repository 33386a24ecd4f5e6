//! Where rows come from: files, unit after unit in an order of their own, or a list.

use serde::{Deserialize, Serialize};

use crate::dataset::HoldOut;
use crate::error::DataError;
use crate::format::RowFormat;
use crate::order::{Permutation, mix};
use crate::read::{Position, Row, Rows, Source};
use crate::tokenize::{RawRow, Sampled};

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
}

/// A source and what its rows are.
pub(crate) struct OpenedSource {
    pub source: Source,
    pub format: RowFormat,
    /// The first usable row in words, for people: the format and its columns.
    pub explained: String,
    /// Its beginning as groups, where that has been tokenised already.
    pub sample: Option<Box<Sampled>>,
}

impl OpenedSource {
    /// The same source for another dataset.
    pub(crate) fn share(&self) -> Self {
        let (source, explained) = (self.source.clone(), self.explained.clone());
        Self { source, format: self.format, explained, sample: None }
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
    open: Option<(usize, Rows<'a>)>,
    /// Of the units that are finished.
    bytes_done: u64,
    bytes_total: u64,
    /// Handed out.
    rows: u64,
    failed: bool,
}

/// Where reading was interrupted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadUpTo {
    next: RowAt,
    bytes_done: u64,
    rows: u64,
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
        Self { opened, order, units, hold_out, turn: 0, open: None, bytes_done: 0, bytes_total, rows: 0, failed: false }
    }

    /// Goes on from a row.
    pub(crate) fn seek(&mut self, at: &RowAt) -> Result<(), DataError> {
        self.open = None;
        self.turn = at.turn;
        // At the end of an epoch there is no unit to open.
        if at.turn < self.units {
            let (index, unit) = self.unit_at(at.turn);
            let position = Position { unit, ..at.position };
            self.open = Some((index, self.opened[index].source.rows_from(position)?));
            self.turn += 1;
        }
        Ok(())
    }

    /// Where a reader of the same files can go on.
    pub(crate) fn up_to(&self) -> ReadUpTo {
        let next = match &self.open {
            Some((_, rows)) => RowAt { turn: self.turn - 1, position: Rows::position(rows) },
            None => RowAt { turn: self.turn, position: Position { unit: 0, row: 0, byte: 0 } },
        };
        ReadUpTo { next, bytes_done: self.bytes_done, rows: self.rows, failed: self.failed }
    }

    pub(crate) fn go_on(&mut self, from: &ReadUpTo) -> Result<(), DataError> {
        (self.bytes_done, self.rows, self.failed) = (from.bytes_done, from.rows, from.failed);
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

    fn open_next(&mut self) -> Result<bool, DataError> {
        if let Some((_, rows)) = self.open.take() {
            self.bytes_done += rows.bytes_read();
        }
        if self.turn >= self.units {
            return Ok(false);
        }
        let (index, unit) = self.unit_at(self.turn);
        let source = &self.opened[index].source;
        self.open = Some((index, source.rows_from(source.start(unit as usize))?));
        self.turn += 1;
        Ok(true)
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Of the files on disk.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_done + self.open.as_ref().map_or(0, |(_, rows)| rows.bytes_read())
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
            if let Some((index, rows)) = &mut self.open {
                // By its full name: iterators have a method of that name too.
                let position = Rows::position(rows);
                if let Some(row) = rows.next() {
                    self.failed = row.as_ref().is_err_and(|error| !error.is_bad_row());
                    // Bad rows are counted on the training side.
                    let here = self.hold_out.is_none_or(|hold| hold.takes(&position, row.is_err()));
                    if !here && !self.failed {
                        continue;
                    }
                    self.rows += 1;
                    return Some(RawRow { at: RowAt { turn: self.turn - 1, position }, source: *index, row });
                }
            }
            match self.open_next() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.failed = true;
                    let position = Position { unit: 0, row: 0, byte: 0 };
                    return Some(RawRow { at: RowAt { turn: self.turn, position }, source: 0, row: Err(error) });
                }
            }
        }
    }

    fn read_share(&self) -> f64 {
        if self.bytes_total == 0 { 1.0 } else { self.bytes_read() as f64 / self.bytes_total as f64 }
    }
}

impl HoldOut {
    /// Whether this side gets the row. Every n-th row of a unit is held out; units begin to count at different rows, so
    /// that many short files give their share too. Needs no count of rows across units, so units may be read in any order.
    fn takes(&self, position: &Position, bad: bool) -> bool {
        let every = self.every.max(1);
        let phase = mix(u64::from(position.unit)) % every;
        let held = (position.row % every + phase) % every == every - 1;
        if bad { !self.held } else { held == self.held }
    }
}

/// Rows that are at hand.
pub(crate) struct Listed<I> {
    rows: I,
    taken: u64,
}

impl<I> Listed<I> {
    pub(crate) fn new(rows: I) -> Self {
        Self { rows, taken: 0 }
    }
}

impl<I: Iterator<Item = Result<Row, DataError>> + Send> RowReader for Listed<I> {
    fn next_row(&mut self) -> Option<RawRow> {
        let row = self.rows.next()?;
        let position = Position { unit: 0, row: self.taken, byte: 0 };
        self.taken += 1;
        Some(RawRow { at: RowAt { turn: 0, position }, source: 0, row })
    }

    /// Nobody knows how many are to come.
    fn read_share(&self) -> f64 {
        0.0
    }
}
