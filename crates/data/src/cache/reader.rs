//! Reading a cache by position.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::{BLOCK_BYTES, BLOCK_ENTRIES, HEADER_BYTES, Header, block_is_sound, checksum, entry_in};
use super::sweep::touch;
use crate::error::DataError;
use crate::record::{self, Entry, Width};

/// Blocks of the index kept by a reader. Under a shuffle hardly any is hit twice, in order all are.
const BLOCKS_KEPT: usize = 64;
/// Index blocks read at a time when a file is opened.
const BLOCKS_AT_ONCE: usize = 256;

/// An open cache. Shared by its readers.
#[derive(Debug)]
pub(crate) struct CacheFile {
    path: PathBuf,
    file: File,
    pub header: Header,
}

/// Why a file is not the cache that is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    Missing,
    /// Made from something else, cut short, or damaged.
    Stale(&'static str),
}

impl CacheFile {
    /// Opens the file and checks everything but the records.
    pub(super) fn open(path: &Path, key: u128) -> Result<Self, Unusable> {
        let Ok(file) = File::open(path) else { return Err(Unusable::Missing) };
        let unreadable = |_| Unusable::Stale("it cannot be read");
        let mut bytes = vec![0; HEADER_BYTES as usize];
        file.read_exact_at(&mut bytes, 0).map_err(|_| Unusable::Stale("it is too short"))?;
        let header = Header::from_bytes(&bytes).ok_or(Unusable::Stale("its header is damaged"))?;
        if header.key != format!("{key:032x}") {
            return Err(Unusable::Stale("it was made from other data"));
        }
        if file.metadata().map_err(unreadable)?.len() != header.file_bytes() {
            return Err(Unusable::Stale("its length is not that of a whole one"));
        }
        let cache = Self { path: path.to_owned(), file, header };
        cache.check_index()?;
        touch(&cache.file);
        Ok(cache)
    }

    fn check_index(&self) -> Result<(), Unusable> {
        let blocks = self.header.sequences.div_ceil(BLOCK_ENTRIES as u64);
        let mut bytes = vec![0; BLOCKS_AT_ONCE * BLOCK_BYTES];
        for first in (0..blocks).step_by(BLOCKS_AT_ONCE) {
            let count = (blocks - first).min(BLOCKS_AT_ONCE as u64) as usize;
            let read = &mut bytes[..count * BLOCK_BYTES];
            let offset = self.header.index_offset() + first * BLOCK_BYTES as u64;
            let result = self.file.read_exact_at(read, offset);
            if result.is_err() || !read.chunks_exact(BLOCK_BYTES).all(block_is_sound) {
                return Err(Unusable::Stale("its index is damaged"));
            }
        }
        Ok(())
    }

    /// Puts the file aside, so that the next start makes a new one, and says so.
    fn damaged(&self, what: &'static str) -> DataError {
        let aside = self.path.with_extension("damaged");
        let moved = std::fs::rename(&self.path, &aside).is_ok();
        DataError::CacheDamaged { path: self.path.clone(), what, moved }
    }
}

/// One reader with its buffers.
pub(crate) struct CacheReader {
    cache: Arc<CacheFile>,
    width: Width,
    /// Block `n` is kept in place `n % BLOCKS_KEPT`.
    blocks: Vec<u8>,
    kept: Vec<u64>,
    record: Vec<u8>,
}

/// What a reader holds.
pub(crate) fn reader_bytes(max_length: usize, width: Width) -> u64 {
    (BLOCKS_KEPT * (BLOCK_BYTES + size_of::<u64>()) + record::bytes_max(max_length, width)) as u64
}

impl CacheReader {
    pub(crate) fn new(cache: Arc<CacheFile>, width: Width) -> Self {
        let blocks = vec![0; BLOCKS_KEPT * BLOCK_BYTES];
        Self { cache, width, blocks, kept: vec![u64::MAX; BLOCKS_KEPT], record: Vec::new() }
    }

    pub(crate) fn entry(&mut self, sequence: u64) -> Result<Entry, DataError> {
        let (block, index) = (sequence / BLOCK_ENTRIES as u64, (sequence % BLOCK_ENTRIES as u64) as usize);
        let place = (block % BLOCKS_KEPT as u64) as usize;
        let bytes = &mut self.blocks[place * BLOCK_BYTES..(place + 1) * BLOCK_BYTES];
        if self.kept[place] != block {
            self.kept[place] = u64::MAX;
            let offset = self.cache.header.index_offset() + block * BLOCK_BYTES as u64;
            self.cache.file.read_exact_at(bytes, offset).map_err(|source| unread(&self.cache, source))?;
            if !block_is_sound(bytes) {
                return Err(self.cache.damaged("its index"));
            }
            self.kept[place] = block;
        }
        Ok(entry_in(bytes, index))
    }

    pub(crate) fn read(&mut self, entry: &Entry, tokens: &mut [i32], targets: &mut [i32]) -> Result<(), DataError> {
        self.record.resize(entry.bytes as usize, 0);
        self.cache
            .file
            .read_exact_at(&mut self.record, HEADER_BYTES + entry.offset)
            .map_err(|source| unread(&self.cache, source))?;
        let sound = checksum(&self.record) == entry.checksum;
        if !sound || record::read(&self.record, self.width, tokens, targets).is_err() {
            return Err(self.cache.damaged("a record"));
        }
        Ok(())
    }
}

fn unread(cache: &CacheFile, source: std::io::Error) -> DataError {
    if source.kind() == std::io::ErrorKind::UnexpectedEof {
        return cache.damaged("its end");
    }
    DataError::CacheRead { path: cache.path.clone(), source }
}
