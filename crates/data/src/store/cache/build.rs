//! Making a cache: under another name until it is whole, by one run while others wait for it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use plimsoll_files::ops;

use super::layout::{HEADER_BYTES, Header, PAGE_ENTRIES, close_page, put_entry};
use super::reader::{CacheFile, Unusable};
use crate::error::DataError;
use crate::store::{Entry, Group, Totals};
use crate::tokenize::Counts;

const BUFFER_BYTES: usize = 1 << 20;
/// How often the disk is looked at while a cache grows.
const CHECK_BYTES: u64 = 64 << 20;

/// The cache at `path`, made by `fill` if it is not there or not usable. A run that finds another one making it waits and
/// takes the result.
pub(crate) fn build_or_open(
    path: &Path,
    key: u128,
    fill: &mut dyn FnMut(Maker<'_>) -> Result<(), DataError>,
) -> Result<CacheFile, DataError> {
    match CacheFile::open(path, key) {
        Ok(cache) => return Ok(cache),
        Err(Unusable::Missing | Unusable::Stale(_)) => {}
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|source| DataError::CacheWrite { path: folder.to_owned(), source })?;
    let (file, building) = lock(path).map_err(|source| failed(path, source))?;
    // Whoever held the lock before may have finished it.
    if let Ok(cache) = CacheFile::open(path, key) {
        let _ = fs::remove_file(&building);
        return Ok(cache);
    }
    let made = fill(Maker { file, path, building: &building, key });
    if made.is_err() {
        // Nothing half-written stays behind; whoever waits for the lock finds no file and begins anew.
        let _ = fs::remove_file(&building);
    }
    made?;
    CacheFile::open(path, key).map_err(|unusable| {
        let what = if let Unusable::Stale(what) = unusable { what } else { "it is gone" };
        DataError::CacheDamaged { path: path.to_owned(), what, moved: false }
    })
}

/// A cache about to be made: its lock is held.
pub(crate) struct Maker<'a> {
    file: File,
    path: &'a Path,
    building: &'a Path,
    key: u128,
}

impl Maker<'_> {
    /// `needed` is how many bytes it will have about, so that a disk without space is refused before the work.
    pub(crate) fn make(
        self,
        needed: u64,
        fill: &mut dyn FnMut(&mut Writer) -> Result<Counts, DataError>,
    ) -> Result<(), DataError> {
        let Self { file, path, building, key } = self;
        if let Some(free) = plimsoll_files::free_bytes(building)
            && needed > free
        {
            return Err(DataError::NoSpace { path: path.to_owned(), needed, free });
        }
        let mut writer = Writer::new(file, building.to_owned(), key)?;
        let counts = fill(&mut writer)?;
        let file = writer.finish(counts)?;
        ops::sync(&file).map_err(|source| failed(building, source))?;
        ops::rename(building, path).map_err(|source| failed(path, source))?;
        // The name itself must survive a power cut too.
        path.parent().map_or(Ok(()), ops::sync_folder).map_err(|source| failed(path, source))
    }
}

/// Opens a file under a temporary name and takes its lock, which ends with the file or the process.
fn lock(path: &Path) -> io::Result<(File, PathBuf)> {
    let building = path.with_extension("building");
    let open = |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    loop {
        let file = open(&building)?;
        match file.lock() {
            Ok(()) => {}
            // Without locks two runs make it twice, under names of their own; each renames a whole file, both are the same.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let own = path.with_extension(format!("{}.building", std::process::id()));
                return Ok((open(&own)?, own));
            }
            Err(error) => return Err(error),
        }
        // While we waited, the file may have been renamed or removed: then this lock guards nothing.
        if same_file(&file, &building)? {
            return Ok((file, building));
        }
    }
}

fn same_file(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((ours.dev(), ours.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn failed(path: &Path, source: io::Error) -> DataError {
    DataError::CacheWrite { path: path.to_owned(), source }
}

/// Appends groups. The index grows in a file of its own, without a name, and is put behind the records in the end.
pub(crate) struct Writer {
    path: PathBuf,
    records: Buffered,
    index: Buffered,
    page: Vec<u8>,
    header: Header,
    checked_bytes: u64,
}

impl Writer {
    fn new(mut file: File, path: PathBuf, key: u128) -> Result<Self, DataError> {
        let start = |file: &mut File| {
            ops::set_len(file, 0)?;
            file.seek(SeekFrom::Start(HEADER_BYTES))
        };
        start(&mut file).map_err(|source| failed(&path, source))?;
        let index_path = path.with_extension("index");
        let index = nameless(&index_path).map_err(|source| failed(&index_path, source))?;
        let header = Header {
            key: format!("{key:032x}"),
            records: 0,
            record_bytes: 0,
            totals: Totals::default(),
            counts: Counts::default(),
        };
        let (records, index) = (Buffered::new(file), Buffered::new(index));
        Ok(Self { path, records, index, page: Vec::new(), header, checked_bytes: 0 })
    }

    /// Records written so far, with their index.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.header.record_bytes + self.header.records * size_of::<Entry>() as u64
    }

    /// `share` of the data has been read: says whether the rest will fit.
    pub(crate) fn check_disk(&mut self, share: f64) -> Result<(), DataError> {
        let written = self.written_bytes();
        if written < self.checked_bytes + CHECK_BYTES || share <= 0.0 {
            return Ok(());
        }
        self.checked_bytes = written;
        let needed = (written as f64 * (1.0 / share.min(1.0) - 1.0)) as u64;
        match plimsoll_files::free_bytes(&self.path) {
            Some(free) if needed > free => Err(DataError::NoSpace { path: self.path.clone(), needed, free }),
            _ => Ok(()),
        }
    }

    /// `streams`: records of each sequence.
    pub(crate) fn push(&mut self, group: &Group, streams: usize) -> Result<(), DataError> {
        self.header.totals.add(&group.entries, streams);
        for entry in &group.entries {
            let record = &group.bytes[entry.offset as usize..][..entry.bytes as usize];
            let entry = Entry { offset: self.header.record_bytes, ..*entry };
            self.records.write(record).map_err(|source| failed(&self.path, source))?;
            put_entry(&entry, &mut self.page);
            let header = &mut self.header;
            header.record_bytes += record.len() as u64;
            header.records += 1;
            if header.records.is_multiple_of(PAGE_ENTRIES as u64) {
                self.close_page()?;
            }
        }
        Ok(())
    }

    fn close_page(&mut self) -> Result<(), DataError> {
        close_page(&mut self.page);
        self.index.write(&self.page).map_err(|source| failed(&self.path, source))?;
        self.page.clear();
        Ok(())
    }

    fn finish(mut self, counts: Counts) -> Result<File, DataError> {
        if !self.page.is_empty() {
            self.close_page()?;
        }
        self.header.counts = counts;
        let path = self.path.clone();
        self.join().map_err(|source| failed(&path, source))
    }

    fn join(self) -> io::Result<File> {
        let mut records = self.records;
        let mut index = self.index.into_file()?;
        index.seek(SeekFrom::Start(0))?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = index.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            records.write(&buffer[..count])?;
        }
        let file = records.into_file()?;
        file.write_all_at(&self.header.to_bytes(), 0)?;
        Ok(file)
    }
}

/// A file that is gone when it is closed.
fn nameless(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
    fs::remove_file(path)?;
    Ok(file)
}

/// Small writes gathered. Unlike std's it tells of every error before the file is given back.
struct Buffered {
    file: File,
    buffer: Vec<u8>,
}

impl Buffered {
    fn new(file: File) -> Self {
        Self { file, buffer: Vec::with_capacity(BUFFER_BYTES) }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.flush()?;
        }
        if bytes.len() >= BUFFER_BYTES {
            return ops::write_all(&mut self.file, bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        ops::write_all(&mut self.file, &self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    fn into_file(mut self) -> io::Result<File> {
        self.flush()?;
        Ok(self.file)
    }
}
