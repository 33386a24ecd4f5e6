//! A file's bytes in order, unpacked on the way, read no further than it was long when it was first looked at.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::file_kind::Packing;
use super::zstd_window;
use crate::error::DataError;

const BUFFER_BYTES: usize = 1 << 16;
/// What unpacking gzip holds: a window of 32 KiB and the tables of its codes.
const GZIP_BYTES: u64 = 96 << 10;

/// What reading a file holds, lines not counted.
pub(super) fn reading_bytes(path: &Path, packing: Packing) -> u64 {
    let buffer = BUFFER_BYTES as u64;
    match packing {
        Packing::Plain => buffer,
        Packing::Gzip => 2 * buffer + GZIP_BYTES,
        Packing::Zstd => 2 * buffer + zstd_window::unpacking_bytes(zstd_window::log(path)),
    }
}

/// What `ByteStream::line` found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    End,
    /// The line is in the buffer, without its end. `complete`: it had one.
    Whole {
        complete: bool,
    },
    /// More than the limit; passed over, the buffer is empty.
    TooLong {
        bytes: u64,
    },
}

pub(super) struct ByteStream {
    path: Arc<Path>,
    packing: Packing,
    reader: Box<dyn BufRead + Send>,
    /// Of the unpacked bytes: where the next one stands.
    offset: u64,
    on_disk: Arc<AtomicU64>,
}

impl ByteStream {
    /// `bytes`: how long the file was when its source was opened. `from` counts unpacked bytes.
    pub(super) fn open(path: &Arc<Path>, packing: Packing, bytes: u64, from: u64) -> Result<Self, DataError> {
        let on_disk = Arc::new(AtomicU64::new(0));
        let seek = if packing == Packing::Plain { from } else { 0 };
        let open = || -> io::Result<Box<dyn BufRead + Send>> {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(seek))?;
            on_disk.store(seek, Ordering::Relaxed);
            let disk = Disk { file, left: bytes.saturating_sub(seek), read: on_disk.clone() };
            let plain = BufReader::with_capacity(BUFFER_BYTES, disk);
            Ok(match packing {
                Packing::Plain => Box::new(plain),
                Packing::Gzip => {
                    let unpacked = flate2::bufread::MultiGzDecoder::new(plain);
                    Box::new(BufReader::with_capacity(BUFFER_BYTES, unpacked))
                }
                Packing::Zstd => {
                    let mut unpacked = zstd::stream::read::Decoder::with_buffer(plain)?;
                    unpacked.window_log_max(zstd_window::log(path))?;
                    Box::new(BufReader::with_capacity(BUFFER_BYTES, unpacked))
                }
            })
        };
        let reader = open().map_err(|source| DataError::Open { path: path.to_path_buf(), source })?;
        let mut stream = Self { path: path.clone(), packing, reader, offset: seek, on_disk };
        stream.pass_over(from - seek)?;
        Ok(stream)
    }

    fn pass_over(&mut self, mut bytes: u64) -> Result<(), DataError> {
        while bytes > 0 {
            let there = self.fill()?.len() as u64;
            if there == 0 {
                let path = self.path.to_path_buf();
                return Err(DataError::Changed { path, was: self.offset + bytes, is: self.offset });
            }
            let step = there.min(bytes);
            self.consume(step as usize);
            bytes -= step;
        }
        Ok(())
    }

    /// The bytes that are there without reading on; empty at the end.
    pub(super) fn fill(&mut self) -> Result<&[u8], DataError> {
        // Asked twice because the borrow checker would hold an early return for the whole function.
        if let Err(error) = self.reader.fill_buf() {
            return Err(self.explain(error));
        }
        let (path, offset) = (&self.path, self.offset);
        self.reader.fill_buf().map_err(|source| DataError::Read { path: path.to_path_buf(), offset, source })
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
        self.offset += bytes as u64;
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Of the file, packed as it is.
    pub(super) fn bytes_read(&self) -> u64 {
        self.on_disk.load(Ordering::Relaxed)
    }

    /// Windows editors put a byte-order mark first.
    pub(super) fn skip_byte_order_mark(&mut self) -> Result<(), DataError> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        if self.offset == 0 && self.fill()?.starts_with(MARK) {
            self.consume(MARK.len());
        }
        Ok(())
    }

    /// Fills `line` with the bytes up to the next `\n`, without it and a `\r` before it.
    pub(super) fn line(&mut self, line: &mut Vec<u8>, bytes_max: usize) -> Result<Line, DataError> {
        line.clear();
        let mut length = 0;
        loop {
            let there = self.fill()?;
            if there.is_empty() {
                return Ok(finish(line, length, false, bytes_max));
            }
            let end = memchr::memchr(b'\n', there);
            let piece = &there[..end.unwrap_or(there.len())];
            length += piece.len() as u64;
            if length > bytes_max as u64 {
                // Not `clear`: what was held goes back.
                *line = Vec::new();
            } else {
                line.extend_from_slice(piece);
            }
            let consumed = piece.len() + usize::from(end.is_some());
            self.consume(consumed);
            if end.is_some() {
                return Ok(finish(line, length, true, bytes_max));
            }
        }
    }

    fn explain(&self, error: io::Error) -> DataError {
        let path = self.path.to_path_buf();
        if let Some(shrank) = error.get_ref().and_then(|inner| inner.downcast_ref::<Shrank>()) {
            return DataError::Changed { path, was: shrank.was, is: shrank.is };
        }
        let broken = matches!(
            error.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::InvalidData
                | io::ErrorKind::Other
        );
        match self.packing.name() {
            Some(packing) if error.kind() == io::ErrorKind::UnexpectedEof => {
                DataError::CutShort { path, packing, offset: self.offset }
            }
            Some(packing) if broken => {
                DataError::Unpack { path, packing, offset: self.offset, reason: error.to_string() }
            }
            _ => DataError::Read { path, offset: self.offset, source: error },
        }
    }
}

fn finish(line: &mut Vec<u8>, length: u64, complete: bool, bytes_max: usize) -> Line {
    if length > bytes_max as u64 {
        return Line::TooLong { bytes: length };
    }
    if length == 0 && !complete {
        return Line::End;
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Line::Whole { complete }
}

/// The file as long as it was. One that grows is read to its old end: rows added later belong to the next run.
struct Disk {
    file: File,
    left: u64,
    read: Arc<AtomicU64>,
}

#[derive(Debug, thiserror::Error)]
#[error("the file shrank from {was} to {is} bytes")]
struct Shrank {
    was: u64,
    is: u64,
}

impl Read for Disk {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let got = self.file.read(&mut buffer[..most])?;
        if got == 0 && most > 0 {
            let is = self.read.load(Ordering::Relaxed);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, Shrank { was: is + self.left, is }));
        }
        self.left -= got as u64;
        self.read.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}
