//! One JSON object per line. Blank lines are passed over but counted, so that row numbers are line numbers.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::byte_stream::{ByteStream, Line};
use super::{ROW_BYTES_MAX, Row, kind};
use crate::error::{DataError, Place};

pub(super) struct JsonLines {
    file: Arc<Path>,
    stream: ByteStream,
    line: Vec<u8>,
    /// Lines passed.
    number: u64,
}

impl JsonLines {
    pub(super) fn new(file: Arc<Path>, mut stream: ByteStream, lines_passed: u64) -> Result<Self, DataError> {
        stream.skip_byte_order_mark()?;
        Ok(Self { file, stream, line: Vec::new(), number: lines_passed })
    }

    pub(super) fn passed(&self) -> u64 {
        self.number
    }

    pub(super) fn stream(&self) -> &ByteStream {
        &self.stream
    }

    fn parse(&self, at: Place, complete: bool) -> Result<Row, DataError> {
        let Ok(text) = std::str::from_utf8(&self.line) else {
            return Err(DataError::NotUtf8 { at });
        };
        match serde_json::from_str(text) {
            Ok(Value::Object(columns)) => Ok(Row { at, columns }),
            Ok(other) => Err(DataError::NotAnObject { at, found: kind(&other) }),
            Err(error) if error.is_eof() && !complete => Err(DataError::HalfWritten { at, reason: describe(&error) }),
            Err(error) => Err(DataError::BadJson { at, reason: describe(&error) }),
        }
    }
}

impl Iterator for JsonLines {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let line = match self.stream.line(&mut self.line, ROW_BYTES_MAX) {
                Ok(Line::End) => return None,
                Ok(line) => line,
                Err(error) => return Some(Err(error)),
            };
            self.number += 1;
            let at = Place { file: self.file.clone(), row: self.number };
            match line {
                Line::TooLong { bytes } => return Some(Err(DataError::RowTooLarge { at, bytes, max: ROW_BYTES_MAX })),
                Line::Whole { complete } if !self.line.trim_ascii().is_empty() => {
                    return Some(self.parse(at, complete));
                }
                _ => {}
            }
        }
    }
}

/// serde_json counts lines inside the one line it was given; only its column means anything here.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or(&text);
    format!("{reason} (column {})", error.column())
}
