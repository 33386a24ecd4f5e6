//! CSV and TSV (RFC 4180): a header that names the columns, then a row per record. Fields are texts; one that is empty and
//! not quoted is absent.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::byte_stream::ByteStream;
use super::file_kind::Packing;
use super::{Position, ROW_BYTES_MAX, Row};
use crate::error::{DataError, Place};
use crate::visible::visible;

/// More are no table that anyone wrote by intent.
const COLUMNS_MAX: usize = 1 << 14;
/// Of the header.
const HEADER_BYTES_MAX: usize = 1 << 20;

/// What stands between two fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Separator {
    Comma,
    Tab,
}

impl Separator {
    fn byte(self) -> u8 {
        if self == Self::Comma { b',' } else { b'\t' }
    }

    fn name(self) -> &'static str {
        if self == Self::Comma { "commas" } else { "tabs" }
    }
}

pub(super) struct Table {
    file: Arc<Path>,
    stream: ByteStream,
    separator: u8,
    /// A column without a name is passed over: some writers number their rows in one.
    header: Vec<String>,
    record: Record,
    /// Lines passed.
    number: u64,
}

/// The fields of one record, one behind another.
#[derive(Default)]
struct Record {
    bytes: Vec<u8>,
    /// Where each field ends, and whether it was quoted.
    ends: Vec<(usize, bool)>,
    /// Fields found, also those beyond what `ends` holds.
    fields: usize,
    /// Of the file.
    length: u64,
    /// Line breaks, the last one included.
    lines: u64,
    fault: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Plain,
    Quoted,
    /// Behind a quote in a quoted field: its end, or the first half of a quote in it.
    Closed,
}

impl Table {
    pub(super) fn open(
        file: &Arc<Path>,
        packing: Packing,
        bytes: u64,
        separator: Separator,
        position: Position,
    ) -> Result<Self, DataError> {
        let mut stream = ByteStream::open(file, packing, bytes, 0)?;
        stream.skip_byte_order_mark()?;
        let (byte, record) = (separator.byte(), Record::default());
        let mut table = Self { file: file.clone(), stream, separator: byte, header: Vec::new(), record, number: 0 };
        table.read_header(separator)?;
        if position.byte > 0 {
            table.stream = ByteStream::open(file, packing, bytes, position.byte)?;
            table.number = position.row;
        }
        Ok(table)
    }

    pub(super) fn passed(&self) -> u64 {
        self.number
    }

    pub(super) fn stream(&self) -> &ByteStream {
        &self.stream
    }

    fn read_header(&mut self, separator: Separator) -> Result<(), DataError> {
        let path = self.file.to_path_buf();
        let bad = |reason: String| DataError::BadHeader { path: path.clone(), reason, separator: separator.name() };
        while self.next_record(HEADER_BYTES_MAX, COLUMNS_MAX)? {
            if self.record.is_blank() {
                continue;
            }
            let Record { fields, length, fault, .. } = self.record;
            if fields > COLUMNS_MAX || length > HEADER_BYTES_MAX as u64 {
                return Err(bad(format!("it has {fields} columns in {length} bytes")));
            }
            if let Some(fault) = fault {
                return Err(bad(fault.to_owned()));
            }
            let mut seen = HashSet::new();
            let mut header = Vec::new();
            for (field, _) in self.record.iter() {
                let name = std::str::from_utf8(field).map_err(|_| bad("it is not valid UTF-8".to_owned()))?.trim();
                if !name.is_empty() && !seen.insert(name.to_owned()) {
                    return Err(bad(format!("two columns are called `{}`", visible(name))));
                }
                header.push(name.to_owned());
            }
            if let [only] = &header[..]
                && only.contains([',', ';', '\t', '|'])
            {
                return Err(bad(format!("its only column is `{}`", visible(only))));
            }
            self.header = header;
            return Ok(());
        }
        Ok(())
    }

    /// `false` at the end. What is beyond the limits is passed over and counted.
    fn next_record(&mut self, bytes_max: usize, fields_max: usize) -> Result<bool, DataError> {
        self.record.clear();
        let mut state = State::Begin;
        loop {
            let there = self.stream.fill()?;
            if there.is_empty() {
                if state == State::Quoted {
                    self.record.fault = Some("a quote that was opened is never closed");
                }
                let any = self.record.length > 0;
                if any {
                    self.record.end_field(state, fields_max);
                }
                self.number += self.record.lines + u64::from(any);
                return Ok(any);
            }
            let (used, over) = self.record.take(there, &mut state, self.separator, bytes_max, fields_max);
            self.stream.consume(used);
            if over {
                self.number += self.record.lines;
                return Ok(true);
            }
        }
    }

    fn row(&self, at: Place) -> Result<Row, DataError> {
        let Record { fields, fault, length, .. } = self.record;
        if length > ROW_BYTES_MAX as u64 {
            return Err(DataError::RowTooLarge { at, bytes: length, max: ROW_BYTES_MAX });
        }
        if let Some(fault) = fault {
            return Err(DataError::BadTable { at, reason: fault.to_owned() });
        }
        if fields != self.header.len() {
            let reason = format!("it has {fields} fields, the header {}", self.header.len());
            return Err(DataError::BadTable { at, reason });
        }
        let mut columns = Map::new();
        for (name, (field, quoted)) in self.header.iter().zip(self.record.iter()).filter(|(name, _)| !name.is_empty()) {
            let value = match std::str::from_utf8(field) {
                Ok("") if !quoted => Value::Null,
                Ok(text) => Value::String(text.to_owned()),
                Err(_) => return Err(DataError::NotUtf8 { at }),
            };
            columns.insert(name.clone(), value);
        }
        Ok(Row { at, columns })
    }
}

impl Record {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        (self.fields, self.length, self.lines, self.fault) = (0, 0, 0, None);
    }

    fn is_blank(&self) -> bool {
        self.fields == 1 && self.fault.is_none() && matches!(self.ends[..], [(0, false)])
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let mut begin = 0;
        self.ends.iter().map(move |&(end, quoted)| {
            let field = &self.bytes[begin..end];
            begin = end;
            (field, quoted)
        })
    }

    fn end_field(&mut self, state: State, fields_max: usize) {
        self.fields += 1;
        if self.ends.len() < fields_max {
            self.ends.push((self.bytes.len(), matches!(state, State::Quoted | State::Closed)));
        }
    }

    /// Takes the record's bytes from `there`: how many there are, and whether its end is among them.
    fn take(
        &mut self,
        there: &[u8],
        state: &mut State,
        separator: u8,
        bytes_max: usize,
        fields_max: usize,
    ) -> (usize, bool) {
        for (index, &byte) in there.iter().enumerate() {
            self.length += 1;
            self.lines += u64::from(byte == b'\n');
            match (*state, byte) {
                (State::Quoted, b'"') => *state = State::Closed,
                (State::Quoted, _) => self.keep(byte, bytes_max),
                (State::Begin, b'"') => *state = State::Quoted,
                (State::Closed, b'"') => {
                    self.keep(byte, bytes_max);
                    *state = State::Quoted;
                }
                (_, b'\n') => {
                    // Of a plain field; behind a quote it was not kept.
                    let begin = self.ends.last().map_or(0, |(end, _)| *end);
                    if *state == State::Plain && self.bytes.len() > begin && self.bytes.last() == Some(&b'\r') {
                        self.bytes.pop();
                    }
                    self.end_field(*state, fields_max);
                    return (index + 1, true);
                }
                (_, _) if byte == separator => {
                    self.end_field(*state, fields_max);
                    *state = State::Begin;
                }
                (State::Closed, b'\r') => {}
                (State::Closed, _) => self.fault = Some("text follows a closing quote"),
                (State::Begin | State::Plain, _) => {
                    *state = State::Plain;
                    self.keep(byte, bytes_max);
                }
            }
        }
        (there.len(), false)
    }

    fn keep(&mut self, byte: u8, bytes_max: usize) {
        if self.length <= bytes_max as u64 {
            self.bytes.push(byte);
        } else if !self.bytes.is_empty() {
            // Too large already: what was held goes back.
            (self.bytes, self.ends) = (Vec::new(), Vec::new());
        }
    }
}

impl Iterator for Table {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = Place { file: self.file.clone(), row: self.number + 1 };
            match self.next_record(ROW_BYTES_MAX, self.header.len()) {
                Err(error) => return Some(Err(error)),
                Ok(false) => return None,
                Ok(true) if self.record.is_blank() => {}
                Ok(true) => return Some(self.row(at)),
            }
        }
    }
}
