//! Rows out of files: JSON lines, JSON arrays, CSV, plain text, Parquet and Arrow, packed or not, one row at a time.

mod arrow;
mod byte_stream;
mod entries;
mod file_kind;
mod held_out;
mod json_array;
mod jsonl;
mod parquet_claims;
mod parquet_columns;
mod parquet_pages;
mod parquet_rows;
mod row_reader;
mod source;
mod splits;
mod table;
mod text;
mod zstd_window;

use serde_json::{Map, Value};

pub use held_out::HoldOut;
pub use parquet_rows::decoding_untrusted;
pub use row_reader::RowAt;
pub(crate) use row_reader::{FileFormat, Files, Listed, OpenedSource, ReadUpTo, RowReader, units};
pub use source::{Position, Rows, Source};

use crate::error::Place;

/// The most bytes one row may have. A larger one is a bad row: it is passed over without being held.
pub const ROW_BYTES_MAX: usize = 64 << 20;

/// One row: its columns by name, and where it came from.
#[derive(Debug, Clone)]
pub struct Row {
    pub at: Place,
    pub columns: Map<String, Value>,
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
