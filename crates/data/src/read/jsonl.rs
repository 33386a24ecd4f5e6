//! One JSON object per line. Blank lines are passed over but counted, so that row numbers are line numbers.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::{Row, kind};
use crate::error::{DataError, Place};

pub(super) struct JsonlRows {
    file: Arc<Path>,
    lines: BufReader<File>,
    line: Vec<u8>,
    number: u64,
}

impl JsonlRows {
    pub(super) fn new(file: Arc<Path>, source: File) -> Self {
        Self { file, lines: BufReader::with_capacity(1 << 16, source), line: Vec::new(), number: 0 }
    }

    /// Fills `self.line`; `false` at the end of the file.
    fn advance(&mut self) -> std::io::Result<bool> {
        self.line.clear();
        self.number += 1;
        Ok(self.lines.read_until(b'\n', &mut self.line)? > 0)
    }

    fn parse(&self, at: Place) -> Result<Row, DataError> {
        let Ok(text) = std::str::from_utf8(&self.line) else {
            return Err(DataError::NotUtf8 { at });
        };
        // Editors on Windows put a byte-order mark before the first line.
        let text = text.trim_start_matches('\u{feff}').trim_end();
        match serde_json::from_str(text) {
            Ok(Value::Object(columns)) => Ok(Row { at, columns }),
            Ok(other) => Err(DataError::NotAnObject { at, found: kind(&other) }),
            Err(error) => Err(DataError::BadJson { at, reason: describe(&error) }),
        }
    }
}

impl Iterator for JsonlRows {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let more = self.advance();
            let at = Place { file: self.file.clone(), row: self.number };
            match more {
                Err(source) => return Some(Err(DataError::Read { at, source })),
                Ok(false) => return None,
                Ok(true) if self.line.trim_ascii().is_empty() => {}
                Ok(true) => return Some(self.parse(at)),
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
