//! Plain text: a row is a paragraph of lines up to the next blank one, in the column `text`.
//!
//! A row per line would end a document at every line break of wrapped prose; a row per file would be as large as the
//! file. A paragraph that does not end is cut behind the line that makes it `PARAGRAPH_BYTES_MAX` long, so that a file
//! without blank lines is read too.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::byte_stream::{ByteStream, Line};
use super::{ROW_BYTES_MAX, Row};
use crate::error::{DataError, Place};

const PARAGRAPH_BYTES_MAX: usize = 1 << 18;

pub(super) struct Paragraphs {
    file: Arc<Path>,
    stream: ByteStream,
    line: Vec<u8>,
    paragraph: Vec<u8>,
    /// Lines passed.
    number: u64,
    /// An error behind the paragraph that is handed out first.
    pending: Option<DataError>,
}

impl Paragraphs {
    pub(super) fn new(file: Arc<Path>, mut stream: ByteStream, lines_passed: u64) -> Result<Self, DataError> {
        stream.skip_byte_order_mark()?;
        Ok(Self { file, stream, line: Vec::new(), paragraph: Vec::new(), number: lines_passed, pending: None })
    }

    pub(super) fn passed(&self) -> u64 {
        self.number
    }

    pub(super) fn stream(&self) -> &ByteStream {
        &self.stream
    }

    fn at(&self, row: u64) -> Place {
        Place { file: self.file.clone(), row }
    }

    fn take_paragraph(&mut self, first: u64) -> Result<Row, DataError> {
        let at = self.at(first);
        match String::from_utf8(std::mem::take(&mut self.paragraph)) {
            Ok(text) => Ok(Row { at, columns: Map::from_iter([("text".to_owned(), Value::String(text))]) }),
            Err(_) => Err(DataError::NotUtf8 { at }),
        }
    }
}

impl Iterator for Paragraphs {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.pending.take() {
            return Some(Err(error));
        }
        let mut first = self.number + 1;
        loop {
            let line = self.stream.line(&mut self.line, ROW_BYTES_MAX);
            let ended = matches!(line, Ok(Line::End) | Err(_));
            self.number += u64::from(!ended);
            let failed = match line {
                Err(error) => Some(error),
                Ok(Line::TooLong { bytes }) => {
                    Some(DataError::RowTooLarge { at: self.at(self.number), bytes, max: ROW_BYTES_MAX })
                }
                Ok(_) => None,
            };
            if failed.is_some() && self.paragraph.is_empty() {
                return failed.map(Err);
            }
            let blank = !ended && failed.is_none() && self.line.trim_ascii().is_empty();
            if (blank || ended || failed.is_some()) && !self.paragraph.is_empty() {
                self.pending = failed;
                return Some(self.take_paragraph(first));
            }
            if ended {
                return None;
            }
            if blank {
                first = self.number + 1;
                continue;
            }
            if !self.paragraph.is_empty() {
                self.paragraph.push(b'\n');
            }
            self.paragraph.extend_from_slice(&self.line);
            if self.paragraph.len() >= PARAGRAPH_BYTES_MAX {
                return Some(self.take_paragraph(first));
            }
        }
    }
}
