//! Caches that nobody has used for long.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::layout::{HEADER_BYTES, Header};

/// Of a cache that was not used for this long, it is taken that nobody wants it again; it can be made again.
const UNUSED: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Swept {
    pub files: u64,
    pub bytes: u64,
}

/// Removes caches from the folder that were not used for 30 days. Only files that this crate wrote: the name is the key
/// in the header. A run that still reads one keeps it until it ends. What cannot be read or removed stays.
pub fn sweep_cache(folder: &Path) -> Swept {
    let mut swept = Swept::default();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        // Of the entry itself: what a link leads to is somebody else's.
        let Ok(about) = entry.metadata() else { continue };
        let unused = about.modified().ok().and_then(|used| SystemTime::now().duration_since(used).ok());
        if !about.is_file() || unused.is_none_or(|unused| unused < UNUSED) || !is_ours(&entry.path()) {
            continue;
        }
        if fs::remove_file(entry.path()).is_ok() {
            swept.files += 1;
            swept.bytes += about.len();
        }
    }
    swept
}

/// Remembers that the cache is used: the time of its last change is that of its last use.
pub(super) fn touch(file: &File) {
    // A folder that may only be read has no caches swept either.
    let _ = file.set_modified(SystemTime::now());
}

fn is_ours(path: &Path) -> bool {
    let known = path.extension().is_some_and(|extension| extension == "tokens" || extension == "damaged");
    let key = known.then(|| key_of(path)).flatten();
    key.is_some_and(|key| path.file_stem().is_some_and(|stem| stem == key.as_str()))
}

fn key_of(path: &Path) -> Option<String> {
    let mut bytes = vec![0; HEADER_BYTES as usize];
    File::open(path).ok()?.read_exact_at(&mut bytes, 0).ok()?;
    Header::key_in(&bytes)
}
