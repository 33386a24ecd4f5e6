//! Single files.

use std::io::{self, Write};
use std::path::Path;

use crate::ops::{self, parent};
use crate::partial::{Partial, name_for};

/// A file being written piece by piece, under a partial name until it is complete.
#[derive(Debug)]
pub struct NewFile {
    partial: Partial,
}

impl NewFile {
    /// `target` is where it is going to be; the folder above it must be there.
    pub fn create(target: &Path) -> io::Result<Self> {
        Ok(Self { partial: Partial::file(target)? })
    }

    /// Gives it its name, in place of a file of that name.
    pub fn commit(self, target: &Path) -> io::Result<()> {
        ops::sync(&self.partial.file)?;
        self.partial.rename(target)?;
        ops::sync_folder(parent(target))
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ops::write_all(&mut self.partial.file, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a file whole: on disk, under its name, in place of what was there.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = NewFile::create(path)?;
    new.write_all(bytes)?;
    new.commit(path)
}

/// Writes a file that others read meanwhile: they see the old content or the new. A power cut may lose it.
pub fn publish(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut partial = Partial::file(path)?;
    ops::write_all(&mut partial.file, bytes)?;
    partial.rename(path)
}

/// Makes `path` a link to `target`, in place of a link that was there.
pub fn link(path: &Path, target: &Path) -> io::Result<()> {
    let partial = name_for(path);
    ops::symlink(target, &partial)?;
    let linked = ops::rename(&partial, path);
    if linked.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    linked
}
