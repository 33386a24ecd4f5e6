//! The files of a dataset as parts that can be read on their own, and places to go on reading from.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use parquet::file::metadata::ParquetMetaData;
use serde::{Deserialize, Serialize};

use super::arrow::{ArrowRows, Directory};
use super::byte_stream::ByteStream;
use super::file_kind::{self, Kind, Packing};
use super::json_array::JsonArray;
use super::jsonl::JsonLines;
use super::parquet_rows::{self, ParquetRows};
use super::table::Table;
use super::text::Paragraphs;
use super::{Row, byte_stream, entries};
use crate::error::DataError;
use crate::format::ColumnNames;

/// The files behind one entry of `data.train`: a file, a pattern (`data/*.jsonl`, `**` for folders in folders), a folder
/// (its own data files, not those of folders in it), or several of them; each file once, in the order of the entries and
/// sorted within each.
///
/// Cheap to clone: a handle, so that several datasets can share what was opened once.
#[derive(Clone)]
pub struct Source {
    name: Arc<str>,
    files: Arc<[DataFile]>,
    units: Arc<[Unit]>,
    /// Of the Parquet or Arrow file last read: its parts are units of their own and would parse it again and again.
    contents: Arc<Mutex<Option<(u32, Contents)>>>,
    /// What reading any of its units holds at most.
    reading: u64,
    /// Readable rows before each unit, as far as they were counted: the first is 0.
    rows_before: Arc<Mutex<Vec<u64>>>,
    columns: Arc<ColumnNames>,
}

struct DataFile {
    path: Arc<Path>,
    bytes: u64,
    modified_ns: u128,
    kind: Kind,
    packing: Packing,
}

/// The table of contents of a file that has one.
#[derive(Clone)]
enum Contents {
    Parquet(Arc<ParquetMetaData>),
    Arrow(Arc<Directory>),
}

impl Contents {
    /// `None` for files that are read from front to back.
    fn read(file: &DataFile) -> Result<Option<Self>, DataError> {
        let DataFile { path, bytes, kind, .. } = file;
        Ok(match kind {
            Kind::Parquet => Some(Self::Parquet(Arc::new(parquet_rows::read_footer(path, *bytes)?))),
            Kind::Arrow => Some(Self::Arrow(Arc::new(Directory::read(path, *bytes)?))),
            Kind::JsonLines | Kind::JsonArray | Kind::Text | Kind::Table(_) => None,
        })
    }

    fn rows_of_parts(&self, file: &DataFile) -> Result<Vec<u64>, DataError> {
        match self {
            Self::Parquet(footer) => parquet_rows::rows_of_groups(&file.path, footer),
            Self::Arrow(directory) => Ok(directory.rows_of_batches().collect()),
        }
    }
}

/// A file, or a row group of a Parquet file, or a batch of an Arrow file.
#[derive(Clone, Copy)]
struct Unit {
    file: u32,
    group: u32,
    /// Rows of the file before this unit.
    rows_before: u64,
    /// Of the unit, where the file says so.
    rows: Option<u64>,
}

/// Where a row begins. Reading on from it costs a seek for plain files, at most the rows before it in one row group for
/// Parquet, and unpacking the file up to it for packed ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Position {
    pub unit: u32,
    /// Rows of the unit before it; for files of lines, lines.
    pub row: u64,
    /// Bytes of the file before it, unpacked; 0 for Parquet and Arrow.
    pub byte: u64,
    /// Readable rows of the unit before it: neither blank lines nor bad rows.
    pub index: u64,
}

impl Source {
    /// Fails now, not after hours of training, when a file is missing or not what its name says.
    pub fn open<S: AsRef<str>>(entries: &[S]) -> Result<Self, DataError> {
        let names: Vec<&str> = entries.iter().map(AsRef::as_ref).collect();
        let paths = entries::expand(&names)?;
        let mut listing = Listing::default();
        for path in paths {
            listing.add(path)?;
        }
        let Listing { files, units, reading } = listing;
        let name = names.join(", ");
        Ok(Self {
            name: name.into(),
            files: files.into(),
            units: units.into(),
            contents: Arc::default(),
            reading,
            rows_before: Arc::new(Mutex::new(vec![0])),
            columns: Arc::default(),
        })
    }

    /// The same source with columns of other names.
    pub fn with_columns(mut self, columns: &ColumnNames) -> Result<Self, DataError> {
        if *columns != *self.columns {
            self.columns = Arc::new(columns.clone());
            // Other columns are read, and so other pages.
            self.reading = 0;
            for file in self.files.iter() {
                self.reading = self.reading.max(file.reading_bytes(Contents::read(file)?.as_ref(), columns)?);
            }
        }
        Ok(self)
    }

    /// As the user wrote it, for messages.
    pub fn name(&self) -> String {
        self.name.to_string()
    }

    /// The files in the order they are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| &*file.path)
    }

    /// On disk, packed as they are.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Absolute path, size and time of change (ns) of every file, one per line. Two equal ones read the same rows.
    pub fn fingerprint(&self) -> String {
        let line = |file: &DataFile| {
            let path = std::path::absolute(&file.path).unwrap_or_else(|_| file.path.to_path_buf());
            format!("{}\t{}\t{}\n", path.display(), file.bytes, file.modified_ns)
        };
        self.files.iter().map(line).collect()
    }

    /// What reading any one of its units holds at most, rows not counted: buffers, windows, pages.
    pub fn reading_bytes(&self) -> u64 {
        self.reading
    }

    /// Parts that can be read on their own: a file, or a row group of a Parquet file.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    pub fn start(&self, unit: usize) -> Position {
        Position { unit: unit as u32, ..Position::default() }
    }

    /// The index of a unit's file among [`Source::files`].
    pub(crate) fn file_of(&self, unit: u32) -> usize {
        self.units[unit as usize].file as usize
    }

    /// Readable rows of the source before a unit. Those of Parquet files are taken from their footers; other files before
    /// it are read through once, and what reading them in order has counted is not counted again.
    pub(crate) fn rows_before(&self, unit: u32) -> Result<u64, DataError> {
        let mut counted = self.rows_before.lock().unwrap_or_else(PoisonError::into_inner);
        while counted.len() <= unit as usize {
            let (next, before) = (counted.len() - 1, counted[counted.len() - 1]);
            let rows = match self.units[next].rows {
                Some(rows) => rows,
                None => self.count(next)?,
            };
            counted.push(before.saturating_add(rows));
        }
        Ok(counted[unit as usize])
    }

    fn count(&self, unit: usize) -> Result<u64, DataError> {
        let mut rows = self.rows_from(self.start(unit))?;
        for row in &mut rows {
            if let Err(error) = row
                && !error.is_bad_row()
            {
                return Err(error);
            }
        }
        Ok(Rows::position(&rows).index)
    }

    /// What reading a unit to its end has found.
    pub(crate) fn record_rows(&self, unit: u32, rows: u64) {
        let mut counted = self.rows_before.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.len() == unit as usize + 1 {
            let rows = self.units[unit as usize].rows.unwrap_or(rows);
            let before = counted[unit as usize];
            counted.push(before.saturating_add(rows));
        }
    }

    /// The rows from `position` to the end of its unit.
    pub fn rows_from(&self, position: Position) -> Result<Rows<'_>, DataError> {
        let no_such = || DataError::NoSuchPosition { name: self.name(), unit: position.unit };
        let unit = *self.units.get(position.unit as usize).ok_or_else(no_such)?;
        let file = &self.files[unit.file as usize];
        let metadata = std::fs::metadata(&file.path)
            .map_err(|source| DataError::Open { path: file.path.to_path_buf(), source })?;
        let is = metadata.len();
        // Rows may be added to a file while it is read; one with a table of contents is another file then.
        if is < file.bytes
            || (matches!(file.kind, Kind::Parquet | Kind::Arrow) && is != file.bytes)
            || position.byte > file.bytes_unpacked_max()
        {
            return Err(DataError::Changed { path: file.path.to_path_buf(), was: file.bytes, is });
        }
        let reader = self.reader(file, unit, position)?;
        Ok(Rows { source: self, unit: position.unit, reader, index: position.index, over: false })
    }

    fn reader(&self, file: &DataFile, unit: Unit, position: Position) -> Result<Reader, DataError> {
        let path = file.path.clone();
        let (part, before, names) = (unit.group as usize, unit.rows_before, &*self.columns);
        match self.contents(unit.file)? {
            Some(Contents::Parquet(footer)) => {
                let rows = ParquetRows::new(path, file.bytes, footer, part, before, position.row, names)?;
                return Ok(Reader::Parquet(Box::new(rows)));
            }
            Some(Contents::Arrow(directory)) => {
                let rows = ArrowRows::new(path, file.bytes, &directory, part, before, position.row, names)?;
                return Ok(Reader::Arrow(Box::new(rows)));
            }
            None => {}
        }
        if let Kind::Table(separator) = file.kind {
            let table = Table::open(&path, file.packing, file.bytes, separator, position)?;
            return Ok(Reader::Table(Box::new(table)));
        }
        let stream = ByteStream::open(&path, file.packing, file.bytes, position.byte)?;
        Ok(match file.kind {
            Kind::JsonLines => Reader::Lines(JsonLines::new(path, stream, position.row)?),
            Kind::JsonArray => Reader::Array(JsonArray::new(path, stream, position.row)?),
            _ => Reader::Text(Paragraphs::new(path, stream, position.row)?),
        })
    }

    fn contents(&self, file: u32) -> Result<Option<Contents>, DataError> {
        let mut kept = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, contents)) = &*kept
            && *of == file
        {
            return Ok(Some(contents.clone()));
        }
        let contents = Contents::read(&self.files[file as usize])?;
        if let Some(contents) = &contents {
            *kept = Some((file, contents.clone()));
        }
        Ok(contents)
    }

    /// Every unit in order. An error that is no bad row ends it.
    pub fn all(&self) -> impl Iterator<Item = Result<Row, DataError>> + '_ {
        self.rows_of(0..self.units())
    }

    /// The rows of one of its files.
    pub(crate) fn all_of_file(&self, file: usize) -> impl Iterator<Item = Result<Row, DataError>> + '_ {
        let first = self.units.partition_point(|unit| (unit.file as usize) < file);
        let end = self.units.partition_point(|unit| unit.file as usize <= file);
        self.rows_of(first..end)
    }

    fn rows_of(&self, units: Range<usize>) -> impl Iterator<Item = Result<Row, DataError>> + '_ {
        let (mut next_unit, end) = (units.start, units.end);
        let mut rows: Option<Rows<'_>> = None;
        std::iter::from_fn(move || {
            loop {
                if let Some(row) = rows.as_mut().and_then(Iterator::next) {
                    if row.as_ref().is_err_and(|error| !error.is_bad_row()) {
                        next_unit = end;
                    }
                    return Some(row);
                }
                if next_unit >= end {
                    return None;
                }
                let opened = self.rows_from(self.start(next_unit));
                next_unit += 1;
                match opened {
                    Ok(opened) => rows = Some(opened),
                    Err(error) => {
                        (rows, next_unit) = (None, end);
                        return Some(Err(error));
                    }
                }
            }
        })
    }
}

/// Files and their units as they are found.
#[derive(Default)]
struct Listing {
    files: Vec<DataFile>,
    units: Vec<Unit>,
    reading: u64,
}

impl Listing {
    fn add(&mut self, path: PathBuf) -> Result<(), DataError> {
        let metadata = std::fs::metadata(&path).map_err(|source| DataError::Open { path: path.clone(), source })?;
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let (path, bytes): (Arc<Path>, u64) = (Arc::from(path), metadata.len());
        let (kind, packing) = file_kind::check(&path, bytes)?;
        let modified_ns = modified.map_or(0, |since| since.as_nanos());
        let data_file = DataFile { path, bytes, modified_ns, kind, packing };
        let file = self.files.len() as u32;
        let contents = Contents::read(&data_file)?;
        self.reading = self.reading.max(data_file.reading_bytes(contents.as_ref(), &ColumnNames::default())?);
        match contents {
            None => self.units.push(Unit { file, group: 0, rows_before: 0, rows: None }),
            Some(contents) => {
                let mut rows_before = 0;
                for (group, rows) in contents.rows_of_parts(&data_file)?.into_iter().enumerate() {
                    self.units.push(Unit { file, group: group as u32, rows_before, rows: Some(rows) });
                    rows_before += rows;
                }
            }
        }
        self.files.push(data_file);
        if self.units.len() >= u32::MAX as usize {
            return Err(DataError::TooManyFiles { units: self.units.len() });
        }
        Ok(())
    }
}

impl DataFile {
    fn bytes_unpacked_max(&self) -> u64 {
        if self.packing == Packing::Plain { self.bytes } else { u64::MAX }
    }

    /// What reading any of its units holds at most, rows not counted.
    fn reading_bytes(&self, contents: Option<&Contents>, names: &ColumnNames) -> Result<u64, DataError> {
        match contents {
            None => Ok(byte_stream::reading_bytes(&self.path, self.packing)),
            Some(Contents::Parquet(footer)) => parquet_rows::reading_bytes(&self.path, footer, names),
            Some(Contents::Arrow(directory)) => directory.reading_bytes(&self.path, self.bytes, names),
        }
    }
}

/// The rows of one unit. A bad row costs itself, or the rest of its row group (`DataError::rows_lost`); any other error
/// is the last item.
pub struct Rows<'a> {
    source: &'a Source,
    unit: u32,
    reader: Reader,
    /// Readable rows of the unit handed out.
    index: u64,
    over: bool,
}

enum Reader {
    Lines(JsonLines),
    Array(JsonArray),
    Text(Paragraphs),
    Table(Box<Table>),
    Parquet(Box<ParquetRows>),
    Arrow(Box<ArrowRows>),
}

impl Reader {
    /// Rows passed in this unit, and the bytes of the file (unpacked) before the next one.
    fn passed(&self) -> (u64, u64) {
        match self {
            Self::Lines(rows) => (rows.passed(), rows.stream().offset()),
            Self::Array(rows) => (rows.passed(), rows.offset()),
            Self::Text(rows) => (rows.passed(), rows.stream().offset()),
            Self::Table(rows) => (rows.passed(), rows.stream().offset()),
            Self::Parquet(rows) => (rows.passed(), 0),
            Self::Arrow(rows) => (rows.passed(), 0),
        }
    }
}

impl Rows<'_> {
    /// Where the next row begins.
    pub fn position(&self) -> Position {
        let (row, byte) = self.reader.passed();
        Position { unit: self.unit, row, byte, index: self.index }
    }

    /// Of the unit's bytes on disk.
    pub fn bytes_read(&self) -> u64 {
        match &self.reader {
            Reader::Lines(rows) => rows.stream().bytes_read(),
            Reader::Array(rows) => rows.stream().bytes_read(),
            Reader::Text(rows) => rows.stream().bytes_read(),
            Reader::Table(rows) => rows.stream().bytes_read(),
            Reader::Parquet(rows) => rows.bytes_read(),
            Reader::Arrow(rows) => rows.bytes_read(),
        }
    }

    /// The file the rows come from.
    pub fn file(&self) -> &Path {
        &self.source.files[self.source.units[self.unit as usize].file as usize].path
    }
}

impl Iterator for Rows<'_> {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let mut row = match &mut self.reader {
            Reader::Lines(rows) => rows.next(),
            Reader::Array(rows) => rows.next(),
            Reader::Text(rows) => rows.next(),
            Reader::Table(rows) => rows.next(),
            Reader::Parquet(rows) => rows.next(),
            Reader::Arrow(rows) => rows.next(),
        };
        self.over = match &row {
            None => true,
            Some(Err(error)) => !error.is_bad_row(),
            Some(Ok(_)) => false,
        };
        if let Some(Ok(row)) = &mut row {
            self.index += 1;
            self.source.columns.apply(row);
        }
        row
    }
}
