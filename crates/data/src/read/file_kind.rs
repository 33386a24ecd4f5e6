//! What a file holds: by its name, checked against its first bytes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use super::Position;
use super::byte_stream::{ByteStream, Line};
use super::json_array::LIST_KEYS;
use super::table::{Separator, Table};
use crate::error::DataError;

/// A first line longer than this is not looked at as a whole.
const FIRST_LINE_BYTES_MAX: usize = 1 << 20;
/// A footer larger than this is taken for damage: it would be held as a whole.
const PARQUET_FOOTER_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    JsonLines,
    JsonArray,
    Text,
    Table(Separator),
    Parquet,
    Arrow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

impl Packing {
    pub(super) fn name(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }
}

/// By the name alone; `None` for names that say nothing known.
pub(super) fn by_name(path: &Path) -> Option<(Kind, Packing)> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let (stem, packing) = [(".gz", Packing::Gzip), (".zst", Packing::Zstd), (".zstd", Packing::Zstd)]
        .into_iter()
        .find_map(|(ending, packing)| Some((name.strip_suffix(ending)?, packing)))
        .unwrap_or((&name, Packing::Plain));
    let kind = match Path::new(stem).extension()?.to_str()? {
        "jsonl" | "ndjson" => Kind::JsonLines,
        "json" => Kind::JsonArray,
        "txt" | "text" => Kind::Text,
        "csv" => Kind::Table(Separator::Comma),
        "tsv" | "tab" => Kind::Table(Separator::Tab),
        // These pack their columns themselves and are not read from front to back.
        "parquet" if packing == Packing::Plain => Kind::Parquet,
        "arrow" | "feather" if packing == Packing::Plain => Kind::Arrow,
        _ => return None,
    };
    Some((kind, packing))
}

/// By name and content. `bytes` is the file's length.
pub(super) fn check(path: &Arc<Path>, bytes: u64) -> Result<(Kind, Packing), DataError> {
    let (kind, packing) = by_name(path).ok_or_else(|| DataError::UnknownExtension { path: path.to_path_buf() })?;
    let mut head = Vec::new();
    File::open(path)
        .and_then(|file| file.take(6).read_to_end(&mut head))
        .map_err(|source| DataError::Open { path: path.to_path_buf(), source })?;
    let found = magic(&head);
    let expected = match (kind, packing) {
        (Kind::Parquet, _) => "Parquet",
        (Kind::Arrow, _) => "Arrow",
        (_, Packing::Gzip) => "gzip",
        (_, Packing::Zstd) => "zstd",
        _ => "text",
    };
    // What is too short, and streams of before 2019, say themselves what is wrong with them.
    let said_later = (kind == Kind::Parquet && bytes < 12) || (kind == Kind::Arrow && found == "text");
    if found != expected && !said_later {
        let (found, hint) = advice(found);
        return Err(DataError::NotItsKind { path: path.to_path_buf(), expected, found, hint });
    }
    if kind == Kind::Parquet {
        check_footer(path, bytes)?;
        return Ok((kind, packing));
    }
    match kind {
        Kind::JsonLines | Kind::JsonArray => return Ok((check_json(path, kind, packing, bytes)?, packing)),
        // Its header is looked at.
        Kind::Table(separator) => drop(Table::open(path, packing, bytes, separator, Position::default())?),
        Kind::Text | Kind::Parquet | Kind::Arrow => {}
    }
    Ok((kind, packing))
}

fn magic(head: &[u8]) -> &'static str {
    match head {
        [0x1f, 0x8b, ..] => "gzip",
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => "zstd",
        [b'P', b'A', b'R', b'1', ..] => "Parquet",
        [b'A', b'R', b'R', b'O', b'W', b'1'] | [0xff, 0xff, 0xff, 0xff, ..] => "Arrow",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "UTF-16",
        [b'P', b'K', 3, 4, ..] => "zip",
        _ => "text",
    }
}

fn advice(found: &'static str) -> (&'static str, &'static str) {
    match found {
        "gzip" => ("gzip", "let its name end in .gz, as in rows.jsonl.gz"),
        "zstd" => ("zstd", "let its name end in .zst, as in rows.jsonl.zst"),
        "Parquet" => ("Parquet", "let its name end in .parquet"),
        "Arrow" => ("Arrow", "let its name end in .arrow"),
        "UTF-16" => ("UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
        "zip" => ("a zip archive", "unpack it and name the files in it"),
        _ => ("something else", "check that the file is complete and that its name says what it holds"),
    }
}

fn check_footer(path: &Path, bytes: u64) -> Result<(), DataError> {
    let bad = |reason: String| DataError::BadParquet { path: path.to_owned(), reason };
    if bytes < 12 {
        return Err(bad(format!("it has {bytes} bytes, too few for a footer")));
    }
    let mut tail = [0; 8];
    let read = |tail: &mut [u8; 8]| -> io::Result<()> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-8))?;
        file.read_exact(tail)
    };
    read(&mut tail).map_err(|source| DataError::Open { path: path.to_owned(), source })?;
    let [a, b, c, d, magic @ ..] = tail;
    if magic != *b"PAR1" {
        return Err(bad("its end is missing: it was not written to the end or was cut".to_owned()));
    }
    let footer = u64::from(u32::from_le_bytes([a, b, c, d]));
    if footer > PARQUET_FOOTER_BYTES_MAX.min(bytes - 12) {
        return Err(bad(format!("its footer claims {footer} of the file's {bytes} bytes")));
    }
    Ok(())
}

/// `.json` is used for lists and for lines alike, so the content decides; `.jsonl` promises lines.
fn check_json(path: &Arc<Path>, kind: Kind, packing: Packing, bytes: u64) -> Result<Kind, DataError> {
    let mut stream = ByteStream::open(path, packing, bytes, 0)?;
    stream.skip_byte_order_mark()?;
    let mut line = Vec::new();
    let found = loop {
        match stream.line(&mut line, FIRST_LINE_BYTES_MAX)? {
            Line::Whole { .. } if line.trim_ascii().is_empty() => {}
            found => break found,
        }
    };
    let first = line.trim_ascii();
    match kind {
        // A line of its own that is a list is a bad row, which is said with its place.
        Kind::JsonLines
            if first.starts_with(b"[") && serde_json::from_slice::<serde::de::IgnoredAny>(first).is_err() =>
        {
            Err(DataError::NotItsKind {
                path: path.to_path_buf(),
                expected: "lines of JSON",
                found: "one JSON list",
                hint: "let its name end in .json",
            })
        }
        Kind::JsonLines => Ok(kind),
        _ if found == Line::End => Ok(Kind::JsonLines),
        _ if first.starts_with(b"{") && is_a_row(first) => Ok(Kind::JsonLines),
        _ => Ok(Kind::JsonArray),
    }
}

/// A whole object that does not itself hold a list of rows.
fn is_a_row(line: &[u8]) -> bool {
    match serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(line) {
        Ok(columns) => !LIST_KEYS.iter().any(|key| columns.get(*key).is_some_and(serde_json::Value::is_array)),
        Err(_) => false,
    }
}
