//! Reading a cache by position.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layout::{HEADER_BYTES, Header, PAGE_BYTES, PAGE_ENTRIES, entry_in, page_is_sound};
use super::sweep::touch;
use crate::error::DataError;
use crate::store::record::checksum;
use crate::store::record::{self, Entry, PerToken, RecordFormat};

/// Pages of the index kept by a reader. Under a shuffle hardly any is hit twice, in order all are.
const PAGES_HELD: usize = 64;
/// Index pages read at a time when a file is opened.
const PAGES_AT_ONCE: usize = 256;

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
        let pages = self.header.records.div_ceil(PAGE_ENTRIES as u64);
        let mut bytes = vec![0; PAGES_AT_ONCE * PAGE_BYTES];
        for first in (0..pages).step_by(PAGES_AT_ONCE) {
            let count = (pages - first).min(PAGES_AT_ONCE as u64) as usize;
            let read = &mut bytes[..count * PAGE_BYTES];
            let offset = self.header.index_offset() + first * PAGE_BYTES as u64;
            let result = self.file.read_exact_at(read, offset);
            if result.is_err() || !read.chunks_exact(PAGE_BYTES).all(page_is_sound) {
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
    format: RecordFormat,
    /// Page `n` is kept in place `n % PAGES_HELD`.
    pages: Vec<u8>,
    held: Vec<u64>,
    record: Vec<u8>,
}

/// What a reader holds.
pub(crate) fn reader_bytes(max_length: &[usize], format: RecordFormat) -> u64 {
    let max_length = max_length.iter().copied().max().unwrap_or(0);
    (PAGES_HELD * (PAGE_BYTES + size_of::<u64>()) + record::bytes_max(max_length, format)) as u64
}

impl CacheReader {
    pub(crate) fn new(cache: Arc<CacheFile>, format: RecordFormat) -> Self {
        let pages = vec![0; PAGES_HELD * PAGE_BYTES];
        Self { cache, format, pages, held: vec![u64::MAX; PAGES_HELD], record: Vec::new() }
    }

    pub(crate) fn entry(&mut self, record: u64) -> Result<Entry, DataError> {
        let (page, index) = (record / PAGE_ENTRIES as u64, (record % PAGE_ENTRIES as u64) as usize);
        let place = (page % PAGES_HELD as u64) as usize;
        let bytes = &mut self.pages[place * PAGE_BYTES..(place + 1) * PAGE_BYTES];
        if self.held[place] != page {
            self.held[place] = u64::MAX;
            let offset = self.cache.header.index_offset() + page * PAGE_BYTES as u64;
            self.cache.file.read_exact_at(bytes, offset).map_err(|source| unread(&self.cache, source))?;
            if !page_is_sound(bytes) {
                return Err(self.cache.damaged("its index"));
            }
            self.held[place] = page;
        }
        Ok(entry_in(bytes, index))
    }

    pub(crate) fn read(
        &mut self,
        entry: &Entry,
        tokens: &mut [i32],
        beside: Option<PerToken<'_>>,
    ) -> Result<Option<i32>, DataError> {
        self.record.resize(entry.bytes as usize, 0);
        self.cache
            .file
            .read_exact_at(&mut self.record, HEADER_BYTES + entry.offset)
            .map_err(|source| unread(&self.cache, source))?;
        if checksum(&self.record) != entry.checksum {
            return Err(self.cache.damaged("a record"));
        }
        record::read(&self.record, self.format, tokens, beside).map_err(|_| self.cache.damaged("a record"))
    }
}

fn unread(cache: &CacheFile, source: std::io::Error) -> DataError {
    if source.kind() == std::io::ErrorKind::UnexpectedEof {
        return cache.damaged("its end");
    }
    DataError::CacheRead { path: cache.path.clone(), source }
}
