//! Arrow IPC files and streams, as `datasets` and pyarrow write them: messages one behind another, each a small table of
//! contents (`flat`) and a body of buffers.
//!
//! Read front to back: a file is a stream between two magic words, and its footer only repeats where the batches are. A
//! record batch is a unit that can be read on its own; of its buffers, only those of columns that some format uses are
//! read. Nothing in a file is believed: every length is held against the file and against a limit before it is used.

mod batch;
mod column;
mod flat;
mod schema;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(super) use batch::ArrowRows;
use batch::{BatchHead, wanted_bytes};
use flat::Flat;
use schema::Schema;

use crate::error::DataError;
use crate::format::ColumnNames;

pub(super) const MAGIC: &[u8; 6] = b"ARROW1";
/// Of one message's table of contents.
const HEAD_BYTES_MAX: u64 = 16 << 20;
/// Of one file: more are taken for damage.
const BATCHES_MAX: usize = 1 << 20;
/// What the wanted columns of one batch may hold, unpacked.
const BATCH_BYTES_MAX: u64 = 512 << 20;

const SCHEMA: u8 = 1;
const RECORD_BATCH: u8 = 3;

/// What is known of a file before its rows are read.
pub(super) struct Directory {
    schema: Schema,
    batches: Vec<BatchPlace>,
}

#[derive(Clone, Copy)]
struct BatchPlace {
    offset: u64,
    rows: u64,
}

/// A message without its body.
struct Message {
    kind: u8,
    head: Vec<u8>,
    body: u64,
    body_bytes: u64,
}

type Result<T> = std::result::Result<T, String>;

impl Directory {
    /// Passes over all messages of the file.
    pub(super) fn read(path: &Path, bytes: u64) -> std::result::Result<Self, DataError> {
        let file = open(path, bytes)?;
        Self::scan(&file, bytes).map_err(|reason| DataError::BadArrow { path: path.to_owned(), reason })
    }

    fn scan(file: &File, bytes: u64) -> Result<Self> {
        let mut offset = 0;
        let mut begin = [0; 8];
        if bytes >= 8 {
            read_at(file, &mut begin, 0)?;
        }
        if begin.starts_with(MAGIC) {
            offset = 8;
        }
        let (mut schema, mut batches) = (None, Vec::new());
        while let Some(message) = read_message(file, offset, bytes)? {
            match (message.kind, &schema) {
                (SCHEMA, None) => schema = Some(Schema::parse(&Flat::new(&message.head))?),
                (SCHEMA, Some(_)) => return Err("it has a second schema".to_owned()),
                (_, None) => return Err("it does not begin with a schema".to_owned()),
                (RECORD_BATCH, Some(_)) if batches.len() < BATCHES_MAX => {
                    let rows = BatchHead::parse(&Flat::new(&message.head))?.rows;
                    batches.push(BatchPlace { offset, rows });
                }
                (RECORD_BATCH, Some(_)) => return Err(format!("it has more than {BATCHES_MAX} record batches")),
                // Dictionaries: columns that are coded by them are refused where they are used.
                _ => {}
            }
            offset = message.body + message.body_bytes;
        }
        let schema =
            schema.ok_or_else(|| "it holds no schema: it was not written to the end, or is empty".to_owned())?;
        Ok(Self { schema, batches })
    }

    pub(super) fn rows_of_batches(&self) -> impl Iterator<Item = u64> {
        self.batches.iter().map(|batch| batch.rows)
    }

    /// What reading any of its batches holds at most, rows not counted.
    pub(super) fn reading_bytes(
        &self,
        path: &Path,
        bytes: u64,
        names: &ColumnNames,
    ) -> std::result::Result<u64, DataError> {
        let file = open(path, bytes)?;
        let wanted = self.schema.wanted(names);
        let of_batch = |batch: &BatchPlace| -> Result<u64> {
            let message = read_message(&file, batch.offset, bytes)?.ok_or("a record batch is gone")?;
            wanted_bytes(&file, &self.schema, &wanted, &message)
        };
        let most = self.batches.iter().try_fold(0, |most, batch| Ok(u64::max(most, of_batch(batch)?)));
        most.map_err(|reason| DataError::BadArrow { path: path.to_owned(), reason })
    }
}

fn open(path: &Path, bytes: u64) -> std::result::Result<File, DataError> {
    let file = File::open(path).map_err(|source| DataError::Open { path: path.to_owned(), source })?;
    let is = file.metadata().map_or(bytes, |metadata| metadata.len());
    if is == bytes { Ok(file) } else { Err(DataError::Changed { path: path.to_owned(), was: bytes, is }) }
}

fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> Result<()> {
    file.read_exact_at(buffer, offset).map_err(|error| format!("cannot read at byte {offset}: {error}"))
}

/// `None` at the end of the stream.
fn read_message(file: &File, offset: u64, bytes: u64) -> Result<Option<Message>> {
    const CONTINUES: u32 = u32::MAX;
    let cut = || format!("it ends within the message at byte {offset}");
    if offset + 4 > bytes {
        return if offset == bytes { Ok(None) } else { Err(cut()) };
    }
    let mut word = [0; 4];
    read_at(file, &mut word, offset)?;
    let mut at = offset + 4;
    let mut length = u32::from_le_bytes(word);
    // Writers of before 2019 gave the length alone.
    if length == CONTINUES {
        if at + 4 > bytes {
            return Err(cut());
        }
        read_at(file, &mut word, at)?;
        (length, at) = (u32::from_le_bytes(word), at + 4);
    }
    let length = u64::from(length);
    if length == 0 {
        return Ok(None);
    }
    if length > HEAD_BYTES_MAX || at + length > bytes {
        return Err(format!("the message at byte {offset} claims a head of {length} of the file's {bytes} bytes"));
    }
    let mut head = vec![0; length as usize];
    read_at(file, &mut head, at)?;
    let message = Flat::new(&head).root()?;
    let kind = message.u8(1)?.unwrap_or(0);
    let body_bytes = message.i64(3)?.unwrap_or(0);
    let body = at + length;
    let body_bytes = u64::try_from(body_bytes).ok().filter(|length| *length <= bytes - body);
    let body_bytes = body_bytes.ok_or_else(cut)?;
    Ok(Some(Message { kind, head, body, body_bytes }))
}
