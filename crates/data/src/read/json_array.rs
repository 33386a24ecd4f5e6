//! A JSON file that is one list of objects, or an object with such a list, one element at a time.
//!
//! The file is never parsed as a whole: a scanner that knows strings and brackets finds where an element ends, and only
//! the element goes to the parser. Elements are told apart by brackets alone, so a missing comma is not an error.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::byte_stream::ByteStream;
use super::{ROW_BYTES_MAX, Row, kind};
use crate::error::{DataError, Place};

/// Where an object around the rows keeps them.
pub(super) const LIST_KEYS: [&str; 7] = ["data", "rows", "examples", "train", "instances", "items", "samples"];
/// Keys before the list; longer ones are not names anyone gave.
const KEY_BYTES_MAX: usize = 1024;

pub(super) struct JsonArray {
    file: Arc<Path>,
    stream: ByteStream,
    element: Vec<u8>,
    /// Elements passed.
    number: u64,
    place: Within,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Start,
    List,
    End,
}

impl JsonArray {
    pub(super) fn new(file: Arc<Path>, mut stream: ByteStream, elements_passed: u64) -> Result<Self, DataError> {
        // Behind the first element the list has been found.
        let place = if stream.offset() == 0 { Within::Start } else { Within::List };
        stream.skip_byte_order_mark()?;
        Ok(Self { file, stream, element: Vec::new(), number: elements_passed, place })
    }

    pub(super) fn passed(&self) -> u64 {
        self.number
    }

    pub(super) fn stream(&self) -> &ByteStream {
        &self.stream
    }

    /// Where to go on: 0 until the list has been found.
    pub(super) fn offset(&self) -> u64 {
        if self.place == Within::Start { 0 } else { self.stream.offset() }
    }

    fn at(&self, row: u64) -> Place {
        Place { file: self.file.clone(), row }
    }

    /// The next byte that is neither white space nor one of `also`, not consumed.
    fn peek_past(&mut self, also: &[u8]) -> Result<Option<u8>, DataError> {
        loop {
            let there = self.stream.fill()?;
            if there.is_empty() {
                return Ok(None);
            }
            let skip = there.iter().position(|b| !b.is_ascii_whitespace() && !also.contains(b));
            let (found, step) = (skip.map(|i| there[i]), skip.unwrap_or(there.len()));
            self.stream.consume(step);
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Goes behind the `[` of the rows.
    fn enter(&mut self) -> Result<bool, DataError> {
        match self.peek_past(&[])? {
            None => return Ok(false),
            Some(b'[') => {
                self.stream.consume(1);
                return Ok(true);
            }
            Some(b'{') => self.stream.consume(1),
            Some(_) => return Err(self.no_rows("it is neither a list nor an object")),
        }
        loop {
            if self.peek_past(b",")? != Some(b'"') {
                return Err(self.no_rows(&format!("its object has no list under any of {}", LIST_KEYS.join(", "))));
            }
            self.scan(KEY_BYTES_MAX)?;
            let key: String = serde_json::from_slice(&self.element).unwrap_or_default();
            if self.peek_past(b":")? == Some(b'[') && LIST_KEYS.contains(&key.as_str()) {
                self.stream.consume(1);
                return Ok(true);
            }
            self.scan(0)?;
        }
    }

    fn no_rows(&self, reason: &str) -> DataError {
        DataError::NoRowsInJson { path: self.file.to_path_buf(), reason: reason.to_owned() }
    }

    /// Passes one value and keeps it in `element` if it has no more than `bytes_max` bytes. Returns its length, and
    /// whether the file went on that far.
    fn scan(&mut self, bytes_max: usize) -> Result<(u64, bool), DataError> {
        self.element.clear();
        let (mut scanner, mut length) = (Scanner::default(), 0);
        loop {
            let there = self.stream.fill()?;
            if there.is_empty() {
                return Ok((length, false));
            }
            let end = scanner.end_in(there);
            let piece = &there[..end.unwrap_or(there.len())];
            length += piece.len() as u64;
            if length > bytes_max as u64 {
                // Not `clear`: what was held goes back.
                self.element = Vec::new();
            } else {
                self.element.extend_from_slice(piece);
            }
            let step = piece.len();
            self.stream.consume(step);
            if end.is_some() {
                return Ok((length, true));
            }
        }
    }

    fn read(&mut self) -> Result<Option<Row>, DataError> {
        if self.place == Within::Start {
            self.place = Within::End;
            if !self.enter()? {
                return Ok(None);
            }
            self.place = Within::List;
        }
        if self.place == Within::End {
            return Ok(None);
        }
        let first = self.peek_past(b",")?;
        let at = self.at(self.number + 1);
        match first {
            Some(b']') => {
                self.place = Within::End;
                return Ok(None);
            }
            None => {
                self.place = Within::End;
                return Err(DataError::HalfWritten { at, reason: "the list has no end".to_owned() });
            }
            Some(b'}') => {
                self.place = Within::End;
                return Err(self.no_rows("a `}` stands where a row or the list's end should be"));
            }
            Some(_) => {}
        }
        let (bytes, whole) = self.scan(ROW_BYTES_MAX)?;
        self.number += 1;
        if bytes > ROW_BYTES_MAX as u64 {
            return Err(DataError::RowTooLarge { at, bytes, max: ROW_BYTES_MAX });
        }
        if !whole {
            self.place = Within::End;
            return Err(DataError::HalfWritten { at, reason: "the row has no end".to_owned() });
        }
        self.parse(at).map(Some)
    }

    fn parse(&self, at: Place) -> Result<Row, DataError> {
        let Ok(text) = std::str::from_utf8(&self.element) else {
            return Err(DataError::NotUtf8 { at });
        };
        match serde_json::from_str(text) {
            Ok(Value::Object(columns)) => Ok(Row { at, columns }),
            Ok(other) => Err(DataError::NotAnObject { at, found: kind(&other) }),
            // serde_json counts lines from the element's beginning.
            Err(error) => Err(DataError::BadJson { at, reason: format!("{error} of the row") }),
        }
    }
}

impl Iterator for JsonArray {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

/// Follows strings and brackets through one JSON value.
#[derive(Default)]
struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    started: bool,
}

impl Scanner {
    /// Behind the value's last byte, if that is in `bytes`.
    fn end_in(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut i = 0;
        while i < bytes.len() {
            if self.in_string {
                i += self.pass_string(&bytes[i..]);
                if !self.in_string && self.depth == 0 {
                    return Some(i);
                }
                continue;
            }
            let byte = bytes[i];
            match byte {
                b'"' if self.depth == 0 && self.started => return Some(i),
                b'"' => self.in_string = true,
                b'{' | b'[' if self.depth == 0 && self.started => return Some(i),
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth <= 1 => {
                    // A bare value ends before the bracket of what holds it.
                    let end = if self.depth == 1 || !self.started { i + 1 } else { i };
                    return Some(end);
                }
                b'}' | b']' => self.depth -= 1,
                b',' if self.depth == 0 => return Some(i),
                _ if self.depth == 0 && byte.is_ascii_whitespace() => return Some(i),
                _ => {}
            }
            self.started = true;
            i += 1;
        }
        None
    }

    /// How many bytes belong to the string the scanner is in, its closing quote included.
    fn pass_string(&mut self, bytes: &[u8]) -> usize {
        let mut i = 0;
        if self.escaped {
            self.escaped = false;
            i = 1;
        }
        while let Some(found) = memchr::memchr2(b'"', b'\\', &bytes[i.min(bytes.len())..]) {
            i += found;
            if bytes[i] == b'"' {
                self.in_string = false;
                return i + 1;
            }
            if i + 1 == bytes.len() {
                self.escaped = true;
                return bytes.len();
            }
            i += 2;
        }
        bytes.len()
    }
}
