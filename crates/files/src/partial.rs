//! Names for what is being written: unique, and locked by whoever writes.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::is_named;
use crate::ops;

const SUFFIX: &str = "partial";

/// A file or folder under a partial name. Removed when dropped, unless it was given its final name.
#[derive(Debug)]
pub(crate) struct Partial {
    pub path: PathBuf,
    /// The file itself or the open folder; its lock says that somebody is at work.
    pub file: File,
    kept: bool,
}

impl Partial {
    pub fn file(target: &Path) -> io::Result<Self> {
        Self::make(target, ops::create_new)
    }

    pub fn folder(target: &Path) -> io::Result<Self> {
        Self::make(target, |path| {
            ops::create_folder(path)?;
            File::open(path)
        })
    }

    fn make(target: &Path, create: impl Fn(&Path) -> io::Result<File>) -> io::Result<Self> {
        loop {
            let path = name_for(target);
            let file = match create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                created => created?,
            };
            match file.try_lock() {
                // Whoever sweeps may have come between making and locking: then the name is gone and the next one is tried.
                Err(TryLockError::WouldBlock) => continue,
                Ok(()) if !is_named(&path, &file) => continue,
                // A file system without locks never has its partial files swept.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Self { path, file, kept: false }),
            }
        }
    }

    /// Gives it its final name, in place of a file or an empty folder of that name.
    pub fn rename(mut self, target: &Path) -> io::Result<()> {
        ops::rename(&self.path, target)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.kept {
            // The first error is the one to report, and what stays is swept later.
            let _ = remove(&self.path);
        }
    }
}

/// A partial name that no one in this process had before.
pub(crate) fn name_for(target: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut name = target.file_name().map_or_else(OsString::new, ToOwned::to_owned);
    name.push(format!(".{}-{}.{SUFFIX}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    target.with_file_name(name)
}

/// Whether a name was made by [`name_for`].
fn is_partial(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let parts =
        name.strip_suffix(SUFFIX).and_then(|rest| rest.strip_suffix('.')).and_then(|rest| rest.rsplit_once('.'));
    parts.and_then(|(_, ids)| ids.split_once('-')).is_some_and(|(pid, count)| number(pid) && number(count))
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Removes what processes that are gone have left half-written in a folder. What cannot be removed stays.
pub fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_partial) {
            continue;
        }
        let path = entry.path();
        let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
        // A link is made and renamed in one go, and nobody holds it open.
        let abandoned = is_link || File::open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if abandoned {
            let _ = remove(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_are_partial() {
        for name in ["step-7.12-0.partial", "a.json.1-22.partial"] {
            assert!(is_partial(name), "{name}");
        }
        for name in ["partial", "my.partial", "a.12.partial", "a.1-.partial", "a.x-1.partial", "a.1-2.partial.txt"] {
            assert!(!is_partial(name), "{name}");
        }
        assert!(is_partial(name_for(Path::new("x/final")).file_name().and_then(|n| n.to_str()).expect("UTF-8")));
    }

    #[test]
    fn what_is_being_written_is_not_swept_and_what_was_left_is() {
        let here = tempfile::tempdir().expect("a folder");
        let at = |name: &str| here.path().join(name);
        let file = Partial::file(&at("file")).expect("writable");
        let folder = Partial::folder(&at("folder")).expect("writable");
        fs::create_dir(at("left.1-1.partial")).expect("writable");
        fs::write(at("left.1-1.partial/inside"), "half").expect("writable");
        fs::write(at("left.1-2.partial"), "half").expect("writable");
        fs::write(at("my.partial"), "the user's own").expect("writable");
        sweep(here.path());
        assert!(file.path.exists() && folder.path.exists(), "both are locked");
        assert!(!at("left.1-1.partial").exists() && !at("left.1-2.partial").exists());
        assert!(at("my.partial").exists());
        drop((file, folder));
        assert_eq!(fs::read_dir(here.path()).expect("readable").count(), 1, "what is dropped is removed");
    }
}
