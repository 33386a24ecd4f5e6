//! Files that one process at a time may hold.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A lock that ends with the process, however that ends.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

/// Whoever only asks whether a lock is held holds it for a moment; others wait that long.
const PATIENCE: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(10);

impl Lock {
    /// Takes the lock of a file, which is made if it is not there; `None` if somebody has it.
    pub fn acquire(path: &Path) -> io::Result<Option<Self>> {
        let began = Instant::now();
        loop {
            crate::fault::next()?;
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
            match file.try_lock() {
                // Whoever had it before may have removed the file: then this lock guards nothing.
                Ok(()) if !is_named(path, &file) => {}
                // A file system without locks goes without.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(Some(Self { file, path: path.to_owned() })),
                Err(TryLockError::WouldBlock) if began.elapsed() > PATIENCE => return Ok(None),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            }
        }
    }

    /// Whether somebody has the lock of a file.
    pub fn is_held(path: &Path) -> bool {
        File::open(path).is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Puts something into the file, for whoever looks at it.
    pub fn write(&mut self, content: &str) -> io::Result<()> {
        crate::ops::set_len(&self.file, 0)?;
        crate::ops::write_all(&mut self.file, content.as_bytes())?;
        crate::ops::sync(&self.file)
    }

    /// Removes the file while it is still locked.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

/// Whether a path is a name of this open file or folder.
pub fn is_named(path: &Path, file: &File) -> bool {
    match (fs::symlink_metadata(path), file.metadata()) {
        (Ok(there), Ok(ours)) => (there.dev(), there.ino()) == (ours.dev(), ours.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let here = tempfile::tempdir().expect("a folder");
        let path = here.path().join("lock");
        assert!(!Lock::is_held(&path));
        let lock = Lock::acquire(&path).expect("writable").expect("free");
        assert!(Lock::is_held(&path));
        assert!(Lock::acquire(&path).expect("readable").is_none());
        drop(lock);
        assert!(!Lock::is_held(&path));
        let lock = Lock::acquire(&path).expect("writable").expect("free again");
        lock.remove().expect("ours");
        assert!(!path.exists());
    }

    /// Many take and give it back at the same time; never do two have it.
    #[test]
    fn removing_and_taking_do_not_cross() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let here = tempfile::tempdir().expect("a folder");
        let path = here.path().join("lock");
        let (holders, times) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        if let Some(lock) = Lock::acquire(&path).expect("writable") {
                            assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                            times.fetch_add(1, Ordering::SeqCst);
                            holders.fetch_sub(1, Ordering::SeqCst);
                            lock.remove().expect("ours");
                        }
                    }
                });
            }
        });
        assert!(times.load(Ordering::SeqCst) >= 8);
    }
}
