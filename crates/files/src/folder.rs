//! Folders of files.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use crate::checksum::{Checksum, Summed};
use crate::ops::{self, parent};
use crate::partial::{Partial, name_for};

/// A folder being written, under a partial name until it is complete.
#[derive(Debug)]
pub struct NewFolder {
    partial: Partial,
}

impl NewFolder {
    /// `target` is where it is going to be; the folder above it must be there.
    pub fn create(target: &Path) -> io::Result<Self> {
        Ok(Self { partial: Partial::folder(target)? })
    }

    /// A new file in it, or in a folder in it.
    pub fn file(&self, name: &str) -> io::Result<FolderFile> {
        let path = self.partial.path.join(name);
        if let Some(above) = path.parent().filter(|above| !above.exists()) {
            ops::create_folder(above)?;
        }
        let file = ops::create_new(&path)?;
        Ok(FolderFile { file, checksum: Checksum::default() })
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> io::Result<Summed> {
        let mut file = self.file(name)?;
        file.write_all(bytes)?;
        file.finish()
    }

    fn sync(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.partial.path)? {
            let path = entry?.path();
            if path.is_dir() {
                ops::sync_folder(&path)?;
            }
        }
        ops::sync_folder(&self.partial.path)
    }

    /// Gives it its name. There may be an empty folder of that name, but no other.
    pub fn commit(self, target: &Path) -> io::Result<()> {
        self.sync()?;
        self.partial.rename(target)?;
        ops::sync_folder(parent(target))
    }

    /// Gives it its name, in place of a folder that is there. That one is gone for a moment between the two.
    pub fn replace(self, target: &Path) -> io::Result<()> {
        if fs::symlink_metadata(target).is_ok() {
            self.sync()?;
            remove_folder(target)?;
        }
        self.commit(target)
    }
}

/// A file of a [`NewFolder`]; what is written is summed on the way.
#[derive(Debug)]
pub struct FolderFile {
    file: fs::File,
    checksum: Checksum,
}

impl FolderFile {
    /// Waits until it is on the disk.
    pub fn finish(self) -> io::Result<Summed> {
        ops::sync(&self.file)?;
        Ok(self.checksum.finish())
    }
}

impl Write for FolderFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ops::write_all(&mut self.file, bytes)?;
        self.checksum.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Removes a folder. Nobody finds half of it under its name.
pub fn remove_folder(path: &Path) -> io::Result<()> {
    let removed = name_for(path);
    ops::rename(path, &removed)?;
    ops::remove_folder_all(&removed)
}
