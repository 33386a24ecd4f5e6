//! Parquet by row group, a page of each column at a time, without arrow's arrays.

use std::cell::Cell;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::properties::ReaderProperties;
use parquet::file::serialized_reader::SerializedRowGroupReader;

use super::parquet_claims::Checked;
use super::parquet_columns::{Columns, RowFault, leaves};
use super::parquet_pages::Pages;
use super::{ROW_BYTES_MAX, Row};
use crate::error::{DataError, Place};
use crate::format::ColumnNames;

thread_local! {
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is decoding bytes that may be damaged. A panic in there becomes an error, so a program's panic
/// hook should say nothing about it.
pub fn decoding_untrusted() -> bool {
    DECODING.get()
}

/// Decoders of the parquet crate index into pages by lengths that the pages themselves give, and some damaged ones make
/// them panic. Nothing of ours is in a half-changed state then: what they worked on is dropped with its row group.
fn guarded<T>(decode: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    DECODING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(decode));
    DECODING.set(false);
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the decoder gave up");
            Err(text.lines().next().unwrap_or_default().to_owned())
        }
    }
}

pub(super) fn read_footer(path: &Path, bytes: u64) -> Result<ParquetMetaData, DataError> {
    let file = File::open(path).map_err(|source| DataError::Open { path: path.to_owned(), source })?;
    let is = file.metadata().map_or(bytes, |metadata| metadata.len());
    if is != bytes {
        return Err(DataError::Changed { path: path.to_owned(), was: bytes, is });
    }
    guarded(|| ParquetMetaDataReader::new().parse_and_finish(&file))
        .map_err(|reason| DataError::BadParquet { path: path.to_owned(), reason })
}

pub(super) fn rows_of_groups(path: &Path, footer: &ParquetMetaData) -> Result<Vec<u64>, DataError> {
    let rows = |group: &parquet::file::metadata::RowGroupMetaData| u64::try_from(group.num_rows());
    let rows: Result<Vec<u64>, _> = footer.row_groups().iter().map(rows).collect();
    rows.ok().filter(|rows| rows.iter().try_fold(0u64, |sum, rows| sum.checked_add(*rows)).is_some()).ok_or_else(|| {
        DataError::BadParquet {
            path: path.to_owned(),
            reason: "a row group claims an impossible number of rows".to_owned(),
        }
    })
}

/// What reading any row group holds at most, rows not counted: of each column that is read its dictionary, the page in use
/// and the one before it (whose texts the batch may still hold), and the packed page beside them; and the footer.
pub(super) fn reading_bytes(path: &Path, footer: &ParquetMetaData, names: &ColumnNames) -> Result<u64, DataError> {
    let file = File::open(path).map_err(|source| DataError::Open { path: path.to_owned(), source })?;
    let of_group = |group: &RowGroupMetaData| {
        // One that cannot be read costs its rows when its turn comes, and holds nothing.
        let columns = guarded(|| Ok(scan(&file, group, names))).and_then(|columns| columns).unwrap_or_default();
        let column = |pages: &Pages| pages.dictionary + 2 * pages.largest + pages.packed + COLUMN_BYTES;
        columns.iter().map(column).sum::<u64>()
    };
    let most = footer.row_groups().iter().map(of_group).max().unwrap_or(0);
    Ok(most + READER_BYTES + footer.memory_size() as u64)
}

/// A batch of values, their levels and what unpacking needs.
const COLUMN_BYTES: u64 = 256 << 10;
/// A batch of rows as values.
const READER_BYTES: u64 = 3 << 20;

/// The pages of the columns that are read.
fn scan(file: &File, group: &RowGroupMetaData, names: &ColumnNames) -> Result<Vec<Pages>, String> {
    let read = leaves(group.schema_descr(), names);
    let columns = group.columns().iter().enumerate().filter(|(leaf, _)| read.contains(leaf));
    columns
        .map(|(_, column)| {
            let (start, length) = column.byte_range();
            Pages::scan(file, start, length)
        })
        .collect()
}

pub(super) struct ParquetRows {
    file: Arc<Path>,
    bytes: u64,
    /// On disk, of this row group.
    group_bytes: u64,
    rows_in_group: u64,
    rows_before: u64,
    passed: u64,
    columns: Option<Columns>,
    /// Found when the group was opened; said when the first row is asked for.
    fault: Option<String>,
}

impl ParquetRows {
    pub(super) fn new(
        file: Arc<Path>,
        bytes: u64,
        footer: Arc<ParquetMetaData>,
        group: usize,
        rows_before: u64,
        skip: u64,
        names: &ColumnNames,
    ) -> Result<Self, DataError> {
        let source = File::open(&file).map_err(|source| DataError::Open { path: file.to_path_buf(), source })?;
        let metadata = footer.row_group(group);
        let rows_in_group = metadata.num_rows().max(0).cast_unsigned();
        let sizes = metadata.columns().iter().map(|column| column.compressed_size().max(0).cast_unsigned());
        let group_bytes = sizes.fold(0, u64::saturating_add);
        let skip = skip.min(rows_in_group);
        let opened = guarded(|| {
            scan(&source, metadata, names).map_err(ParquetError::General)?;
            let properties = Arc::new(ReaderProperties::builder().build());
            let reader = SerializedRowGroupReader::new(
                Arc::new(source),
                metadata,
                footer.page_index_for_row_group(group),
                properties,
            )?;
            let mut columns = Columns::open(&Checked(&reader), footer.file_metadata().schema_descr(), names)?;
            columns.skip(skip)?;
            Ok(columns)
        });
        let (columns, fault) = match opened {
            Ok(columns) => (Some(columns), None),
            Err(reason) => (None, Some(reason)),
        };
        Ok(Self { file, bytes, group_bytes, rows_in_group, rows_before, passed: skip, columns, fault })
    }

    pub(super) fn passed(&self) -> u64 {
        self.passed
    }

    /// The group's pages are read column by column; its rows say how far they are used.
    pub(super) fn bytes_read(&self) -> u64 {
        let share = u128::from(self.group_bytes) * u128::from(self.passed) / u128::from(self.rows_in_group.max(1));
        share as u64
    }

    fn at(&self, row: u64) -> Place {
        Place { file: self.file.clone(), row: self.rows_before + row }
    }

    /// The rest of the group is lost, or the file is another one by now.
    fn failed(&mut self, reason: String) -> DataError {
        let rows = self.rows_in_group - self.passed;
        let at = self.at(self.passed + 1);
        self.passed = self.rows_in_group;
        self.columns = None;
        let is = std::fs::metadata(&self.file).map_or(0, |metadata| metadata.len());
        if is != self.bytes {
            return DataError::Changed { path: self.file.to_path_buf(), was: self.bytes, is };
        }
        DataError::BadRowGroup { at, rows, reason }
    }
}

impl Iterator for ParquetRows {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(reason) = self.fault.take() {
            return (self.rows_in_group > self.passed).then(|| Err(self.failed(reason)));
        }
        let columns = self.columns.as_mut().filter(|columns| columns.rows_left() > 0)?;
        let row = match guarded(|| columns.next_row(ROW_BYTES_MAX as u64)) {
            Ok(row) => row,
            Err(reason) => return Some(Err(self.failed(reason))),
        };
        self.passed += 1;
        let at = self.at(self.passed);
        Some(match row {
            Ok(columns) => Ok(Row { at, columns }),
            Err(RowFault::NotUtf8) => Err(DataError::NotUtf8 { at }),
            Err(RowFault::TooLarge { bytes }) => Err(DataError::RowTooLarge { at, bytes, max: ROW_BYTES_MAX }),
        })
    }
}
