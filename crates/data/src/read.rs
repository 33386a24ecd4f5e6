//! Rows out of files: JSONL and Parquet, one file after another, one row at a time.

mod jsonl;
mod parquet_rows;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::error::{DataError, Place};
use jsonl::JsonlRows;
use parquet_rows::ParquetRows;

/// One row: its columns by name, and where it came from.
#[derive(Debug, Clone)]
pub struct Row {
    pub at: Place,
    pub columns: Map<String, Value>,
}

/// The rows of several files, in the order the files were given. Holds one line or one Parquet row group at a time.
pub struct Rows {
    waiting: VecDeque<PathBuf>,
    current: Option<Reader>,
}

enum Reader {
    Jsonl(JsonlRows),
    Parquet(ParquetRows),
}

impl Rows {
    /// Fails now, not after hours of training, when a file is missing or of an unknown kind.
    pub fn open<P: AsRef<Path>>(files: &[P]) -> Result<Self, DataError> {
        let waiting: VecDeque<PathBuf> = files.iter().map(|f| f.as_ref().to_owned()).collect();
        for path in &waiting {
            open_reader(path)?;
        }
        Ok(Self { waiting, current: None })
    }
}

impl Iterator for Rows {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let row = match &mut self.current {
                Some(Reader::Jsonl(rows)) => rows.next(),
                Some(Reader::Parquet(rows)) => rows.next(),
                None => None,
            };
            if row.is_some() {
                return row;
            }
            match open_reader(&self.waiting.pop_front()?) {
                Ok(reader) => self.current = Some(reader),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn open_reader(path: &Path) -> Result<Reader, DataError> {
    let open = || {
        let file = std::fs::File::open(path)?;
        // Opening a folder succeeds on Linux; only reading would fail, with a message nobody expects.
        if file.metadata()?.is_dir() {
            return Err(std::io::ErrorKind::IsADirectory.into());
        }
        Ok(file)
    };
    let file = open().map_err(|source| DataError::Open { path: path.to_owned(), source })?;
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    let name: Arc<Path> = Arc::from(path);
    match extension.to_ascii_lowercase().as_str() {
        "jsonl" | "ndjson" => Ok(Reader::Jsonl(JsonlRows::new(name, file))),
        "parquet" => Ok(Reader::Parquet(ParquetRows::new(name, file)?)),
        _ => Err(DataError::UnknownExtension { path: path.to_owned() }),
    }
}

/// What a JSON value is, in words for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
