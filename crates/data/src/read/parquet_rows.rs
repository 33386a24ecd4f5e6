//! Parquet through the row API: one row group's pages at a time, without arrow's arrays.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::reader::{ReaderIter, TreeBuilder};
use serde_json::Value;

use super::{Row, kind};
use crate::error::{DataError, Place};

pub(super) struct ParquetRows {
    file: Arc<Path>,
    reader: SerializedFileReader<File>,
    next_group: usize,
    group: Option<ReaderIter>,
    row: u64,
}

impl ParquetRows {
    pub(super) fn new(file: Arc<Path>, source: File) -> Result<Self, DataError> {
        let reader = SerializedFileReader::new(source)
            .map_err(|error| DataError::BadParquet { path: file.to_path_buf(), reason: error.to_string() })?;
        Ok(Self { file, reader, next_group: 0, group: None, row: 0 })
    }

    fn at(&self) -> Place {
        Place { file: self.file.clone(), row: self.row }
    }

    /// The crate's own `RowIter` panics on a row group it cannot open, so the groups are walked here.
    fn open_next_group(&mut self) -> parquet::errors::Result<()> {
        let index = self.next_group;
        self.next_group += 1;
        let group = self.reader.get_row_group(index)?;
        let schema = self.reader.metadata().file_metadata().schema_descr_ptr();
        self.group = Some(TreeBuilder::new().as_iter(schema, &*group)?);
        Ok(())
    }

    fn failed(&self, error: &parquet::errors::ParquetError) -> DataError {
        DataError::BadParquetRow { at: self.at(), reason: error.to_string() }
    }
}

impl Iterator for ParquetRows {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.group.as_mut().and_then(Iterator::next) {
                self.row += 1;
                return Some(match row.map(|row| row.to_json_value()) {
                    Ok(Value::Object(columns)) => Ok(Row { at: self.at(), columns }),
                    Ok(other) => Err(DataError::NotAnObject { at: self.at(), found: kind(&other) }),
                    Err(error) => Err(self.failed(&error)),
                });
            }
            if self.next_group >= self.reader.num_row_groups() {
                return None;
            }
            if let Err(error) = self.open_next_group() {
                self.row += 1;
                return Some(Err(self.failed(&error)));
            }
        }
    }
}
