//! The operations that change a disk. Whoever writes anything that has to survive calls these instead of the standard
//! library's, so that faults reach it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::fault;

/// A new file, for writing and reading; one that is there already is an error.
pub fn create_new(path: &Path) -> io::Result<File> {
    fault::next()?;
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// A file for appending, made if it is not there.
pub fn append(path: &Path) -> io::Result<File> {
    fault::next()?;
    OpenOptions::new().append(true).create(true).open(path)
}

pub fn create_folder(path: &Path) -> io::Result<()> {
    fault::next()?;
    fs::create_dir(path)
}

/// Writes all bytes. As on a disk that fills up, a write that fails may have written a part.
pub fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    if let Err(error) = fault::next() {
        file.write_all(&bytes[..bytes.len() / 2])?;
        return Err(error);
    }
    file.write_all(bytes)
}

/// Waits until the file's content is on the disk.
pub fn sync(file: &File) -> io::Result<()> {
    fault::next()?;
    file.sync_all()
}

pub fn set_len(file: &File, bytes: u64) -> io::Result<()> {
    fault::next()?;
    file.set_len(bytes)
}

pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fault::next()?;
    fs::rename(from, to)
}

pub fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    fault::next()?;
    std::os::unix::fs::symlink(target, path)
}

pub fn remove_file(path: &Path) -> io::Result<()> {
    fault::next()?;
    fs::remove_file(path)
}

pub fn remove_folder_all(path: &Path) -> io::Result<()> {
    fault::next()?;
    fs::remove_dir_all(path)
}

/// Waits until the names in a folder are on the disk. Not every file system can do so; one that cannot says it plainly.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    fault::next()?;
    match File::open(path)?.sync_all() {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

/// The folder a path lies in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
