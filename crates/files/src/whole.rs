//! Single files.

use std::io;
use std::path::Path;

use crate::ops::{self, parent};
use crate::partial::{Partial, name_for};

/// Writes a file whole: on disk, under its name, in place of what was there.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut partial = Partial::file(path)?;
    ops::write_all(&mut partial.file, bytes)?;
    ops::sync(&partial.file)?;
    partial.rename(path)?;
    ops::sync_folder(parent(path))
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
