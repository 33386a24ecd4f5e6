//! One record batch: the buffers of the wanted columns, and the rows made of them.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::column::{Column, Fault};
use super::flat::{Flat, List};
use super::schema::{Field, Schema};
use super::{BATCH_BYTES_MAX, Directory, Message, Result, open, read_at, read_message};
use crate::error::{DataError, Place};
use crate::format::ColumnNames;
use crate::read::{ROW_BYTES_MAX, Row, zstd_window};
use crate::visible::visible;

/// Before a packed buffer stands its length unpacked, in so many bytes.
const PREFIX: u64 = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Packing {
    Plain,
    Lz4,
    Zstd,
}

/// The table of contents of a batch.
pub(super) struct BatchHead<'a> {
    pub rows: u64,
    nodes: Option<List<'a>>,
    buffers: Option<List<'a>>,
    views: Option<List<'a>>,
    packing: Packing,
}

impl<'a> BatchHead<'a> {
    pub(super) fn parse(message: &Flat<'a>) -> Result<Self> {
        let batch = message.root()?.table(2)?.ok_or("a record batch is empty")?;
        let rows = u64::try_from(batch.i64(0)?.unwrap_or(0)).ok().filter(|rows| *rows <= u64::from(u32::MAX));
        let packing = match batch.table(3)?.map(|packed| packed.u8(0)).transpose()? {
            None => Packing::Plain,
            Some(None | Some(0)) => Packing::Lz4,
            Some(Some(1)) => Packing::Zstd,
            Some(Some(codec)) => return Err(format!("a record batch is packed by the unknown codec {codec}")),
        };
        let rows = rows.ok_or("a record batch claims an impossible number of rows")?;
        Ok(Self { rows, nodes: batch.list(1, 16)?, buffers: batch.list(2, 16)?, views: batch.list(4, 8)?, packing })
    }
}

/// Goes through nodes and buffers in the order of the columns.
struct Walk<'a> {
    file: &'a File,
    message: &'a Message,
    head: BatchHead<'a>,
    node: usize,
    buffer: usize,
    view: usize,
    /// Of the buffers read.
    bytes: u64,
}

impl<'a> Walk<'a> {
    fn new(file: &'a File, message: &'a Message) -> Result<Self> {
        let head = BatchHead::parse(&Flat::new(&message.head))?;
        Ok(Self { file, message, head, node: 0, buffer: 0, view: 0, bytes: 0 })
    }

    /// Rows of the next node.
    fn next_node(&mut self) -> Result<usize> {
        let node = self.head.nodes.filter(|nodes| self.node < nodes.len).ok_or("a record batch lacks columns")?;
        let length = node.i64(self.node, 0)?;
        self.node += 1;
        usize::try_from(length).map_err(|_| "a column claims a negative number of rows".to_owned())
    }

    /// Where the next buffer is in the file.
    fn next_buffer(&mut self) -> Result<(u64, u64)> {
        let list = self.head.buffers.filter(|list| self.buffer < list.len).ok_or("a record batch lacks buffers")?;
        let (offset, length) = (list.i64(self.buffer, 0)?, list.i64(self.buffer, 1)?);
        self.buffer += 1;
        let within =
            |offset: u64, length: u64| offset.checked_add(length).is_some_and(|end| end <= self.message.body_bytes);
        match (u64::try_from(offset), u64::try_from(length)) {
            (Ok(offset), Ok(length)) if within(offset, length) => Ok((self.message.body + offset, length)),
            _ => Err("a buffer lies outside of its record batch".to_owned()),
        }
    }

    fn pass(&mut self, field: &Field) -> Result<()> {
        self.next_node()?;
        let mut buffers = field.kind.buffers();
        if let super::schema::Kind::Other { views: true, .. } = field.kind {
            let views = self.head.views.filter(|views| self.view < views.len).ok_or("a record batch lacks views")?;
            let more = usize::try_from(views.i64(self.view, 0)?).map_err(|_| "a negative number of views")?;
            self.view += 1;
            let left = self.head.buffers.map_or(0, |list| list.len - self.buffer.min(list.len));
            buffers += more.min(left);
        }
        for _ in 0..buffers {
            self.next_buffer()?;
        }
        field.children.iter().try_for_each(|child| self.pass(child))
    }

    /// How large the next buffer is when unpacked, where it lies, and whether it is packed.
    fn measure(&mut self) -> Result<(u64, u64, u64, Packing)> {
        let (offset, length) = self.next_buffer()?;
        let mut packing = self.head.packing;
        let (mut at, mut packed, mut bytes) = (offset, length, length);
        if packing != Packing::Plain && length > 0 {
            let mut prefix = [0; PREFIX as usize];
            if length < PREFIX {
                return Err("a packed buffer is too short".to_owned());
            }
            read_at(self.file, &mut prefix, offset)?;
            (at, packed) = (offset + PREFIX, length - PREFIX);
            bytes = match i64::from_le_bytes(prefix) {
                // Packing would have made it longer.
                -1 => {
                    packing = Packing::Plain;
                    packed
                }
                bytes => u64::try_from(bytes).map_err(|_| "a packed buffer claims a negative length")?,
            };
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > BATCH_BYTES_MAX {
            return Err(format!(
                "a record batch holds more than {} MiB in the columns that are read; write it in smaller batches",
                BATCH_BYTES_MAX >> 20
            ));
        }
        Ok((bytes, at, packed, packing))
    }

    fn read_buffer(&mut self) -> Result<Vec<u8>> {
        let (bytes, at, packed, packing) = self.measure()?;
        // Some writers pack nothing into nothing, not even a frame.
        if bytes == 0 {
            return Ok(Vec::new());
        }
        // The file has them: nothing is reserved for what is not there.
        let mut raw = vec![0; packed as usize];
        read_at(self.file, &mut raw, at)?;
        if packing == Packing::Plain {
            return Ok(raw);
        }
        let unpack = |reader: &mut dyn Read| -> Result<Vec<u8>> {
            let mut out = Vec::new();
            reader.take(bytes + 1).read_to_end(&mut out).map_err(|error| format!("cannot unpack a buffer: {error}"))?;
            if out.len() as u64 == bytes { Ok(out) } else { Err("a buffer is not as long as it claims".to_owned()) }
        };
        if packing == Packing::Lz4 {
            return unpack(&mut lz4_flex::frame::FrameDecoder::new(&raw[..]));
        }
        let mut decoder = zstd::stream::read::Decoder::with_buffer(&raw[..]).map_err(|error| error.to_string())?;
        decoder.window_log_max(zstd_window::LOG_MAX).map_err(|error| error.to_string())?;
        unpack(&mut decoder)
    }

    fn read(&mut self, field: &Field) -> Result<Column> {
        let rows = self.next_node()?;
        let buffers = (0..field.kind.buffers()).map(|_| self.read_buffer()).collect::<Result<Vec<_>>>()?;
        let children = field.children.iter().map(|child| Ok((child.name.clone(), self.read(child)?)));
        let children = children.collect::<Result<Vec<_>>>()?;
        Column::new(field.kind, rows, buffers, children)
            .map_err(|reason| format!("column `{}`: {reason}", visible(&field.name)))
    }

    fn measure_all(&mut self, field: &Field) -> Result<()> {
        self.next_node()?;
        for _ in 0..field.kind.buffers() {
            self.measure()?;
        }
        field.children.iter().try_for_each(|child| self.measure_all(child))
    }
}

/// What the wanted columns of a batch hold, with the largest of them packed beside it.
pub(super) fn wanted_bytes(file: &File, schema: &Schema, wanted: &[bool], message: &Message) -> Result<u64> {
    let mut walk = Walk::new(file, message)?;
    for (field, wanted) in schema.fields.iter().zip(wanted) {
        if *wanted && field.unreadable().is_none() { walk.measure_all(field)? } else { walk.pass(field)? }
    }
    let packed = if walk.head.packing == Packing::Plain { 0 } else { message.body_bytes.min(walk.bytes) + (2 << 20) };
    Ok(walk.bytes + packed + message.head.len() as u64)
}

/// The rows of one batch.
pub(in crate::read) struct ArrowRows {
    file: Arc<Path>,
    bytes: u64,
    rows_before: u64,
    rows: u64,
    passed: u64,
    body_bytes: u64,
    columns: Vec<(String, Column)>,
    /// Found when the batch was opened; said when the first row is asked for.
    fault: Option<String>,
}

impl ArrowRows {
    pub(in crate::read) fn new(
        path: Arc<Path>,
        bytes: u64,
        directory: &Directory,
        batch: usize,
        rows_before: u64,
        skip: u64,
        names: &ColumnNames,
    ) -> std::result::Result<Self, DataError> {
        let file = open(&path, bytes)?;
        let place = directory.batches[batch];
        let wanted = directory.schema.wanted(names);
        // A column that cannot be read is no matter of one batch.
        for (field, _) in directory.schema.fields.iter().zip(&wanted).filter(|(_, wanted)| **wanted) {
            if let Some(kind) = field.unreadable() {
                let reason = format!("column `{}` is of type {kind}, which is not read; cast it", visible(&field.name));
                return Err(DataError::BadArrow { path: path.to_path_buf(), reason });
            }
        }
        let mut body_bytes = 0;
        let mut read = || -> Result<Vec<(String, Column)>> {
            let message = read_message(&file, place.offset, bytes)?.ok_or("it is gone")?;
            body_bytes = message.body_bytes;
            let mut walk = Walk::new(&file, &message)?;
            let mut columns = Vec::new();
            for (field, wanted) in directory.schema.fields.iter().zip(&wanted) {
                if !wanted {
                    walk.pass(field)?;
                    continue;
                }
                let column = walk.read(field)?;
                if column.rows() as u64 != place.rows {
                    return Err(format!("column `{}` has another number of rows", visible(&field.name)));
                }
                columns.push((field.name.clone(), column));
            }
            Ok(columns)
        };
        let (columns, fault) = match read() {
            Ok(columns) => (columns, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        let passed = skip.min(place.rows);
        Ok(Self { file: path, bytes, rows_before, rows: place.rows, passed, body_bytes, columns, fault })
    }

    pub(in crate::read) fn passed(&self) -> u64 {
        self.passed
    }

    pub(in crate::read) fn bytes_read(&self) -> u64 {
        (u128::from(self.body_bytes) * u128::from(self.passed) / u128::from(self.rows.max(1))) as u64
    }

    fn at(&self, row: u64) -> Place {
        Place { file: self.file.clone(), row: self.rows_before + row }
    }

    /// The rest of the batch is lost, or the file is another one by now.
    fn failed(&mut self, reason: String) -> DataError {
        let (rows, at) = (self.rows - self.passed, self.at(self.passed + 1));
        self.passed = self.rows;
        let is = std::fs::metadata(&self.file).map_or(0, |metadata| metadata.len());
        if is != self.bytes {
            return DataError::Changed { path: self.file.to_path_buf(), was: self.bytes, is };
        }
        DataError::BadRowGroup { at, rows, reason }
    }

    fn read_row(&self, row: usize) -> std::result::Result<Map<String, Value>, Fault> {
        let mut budget = ROW_BYTES_MAX;
        let mut value = |(name, column): &(String, Column)| Ok((name.clone(), column.value(row, &mut budget)?));
        self.columns.iter().map(&mut value).collect()
    }
}

impl Iterator for ArrowRows {
    type Item = std::result::Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.passed >= self.rows {
            return None;
        }
        if let Some(reason) = self.fault.take() {
            return Some(Err(self.failed(reason)));
        }
        let row = self.read_row(self.passed as usize);
        if let Err(Fault::Damaged(reason)) = row {
            return Some(Err(self.failed(reason.to_owned())));
        }
        self.passed += 1;
        let at = self.at(self.passed);
        Some(match row {
            Ok(columns) => Ok(Row { at, columns }),
            Err(Fault::TooLarge) => {
                Err(DataError::RowTooLarge { at, bytes: ROW_BYTES_MAX as u64 + 1, max: ROW_BYTES_MAX })
            }
            Err(_) => Err(DataError::NotUtf8 { at }),
        })
    }
}
