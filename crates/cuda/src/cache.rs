//! Compiled kernels on disk, so that only the first run compiles. Any number of processes may share
//! the folder: an entry appears whole or not at all, and one that does not hold what it should is
//! made again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"plimsol1";
/// Magic, hash of the key, hash of the content.
const HEADER_BYTES: usize = 24;

/// A folder of entries, or none: then nothing is kept.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    pub(crate) fn none() -> Self {
        Self { folder: None }
    }

    /// `$XDG_CACHE_HOME/plimsoll/kernels`.
    pub(crate) fn of_user() -> Self {
        Self { folder: user_folder("kernels") }
    }

    fn path(&self, name: &str, key: u64) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("{name}-{key:016x}.cubin")))
    }

    pub(crate) fn read(&self, name: &str, key: &str) -> Option<Vec<u8>> {
        let key = hash(key.as_bytes());
        let mut entry = std::fs::read(self.path(name, key)?).ok()?;
        let header = entry.get(..HEADER_BYTES)?;
        let content = &entry[HEADER_BYTES..];
        (header == entry_header(key, content)).then(|| entry.split_off(HEADER_BYTES))
    }

    /// A cache that cannot be written to costs time, nothing else, so failures are not reported.
    pub(crate) fn write(&self, name: &str, key: &str, content: &[u8]) {
        let key = hash(key.as_bytes());
        if let Some(path) = self.path(name, key) {
            let _ = put(&path, &[&entry_header(key, content)[..], content].concat());
        }
    }
}

/// A folder of ours under `$XDG_CACHE_HOME/plimsoll`, else under `~/.cache/plimsoll`.
pub(crate) fn user_folder(name: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    base.map(|base| base.join("plimsoll").join(name))
}

/// Puts a file into a folder of ours, which is made if it is not there. What killed processes left in it goes.
pub(crate) fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder)?;
    plimsoll_files::sweep(folder);
    plimsoll_files::publish(path, bytes)
}

fn entry_header(key: u64, content: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&key.to_le_bytes());
    header[16..].copy_from_slice(&hash(content).to_le_bytes());
    header
}

pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_cache(name: &str, test: impl FnOnce(&Cache, &std::path::Path)) {
        let folder = std::env::temp_dir().join(format!("plimsoll-cache-{name}-{}", std::process::id()));
        test(&Cache { folder: Some(folder.clone()) }, &folder);
        std::fs::remove_dir_all(&folder).expect("was written to");
    }

    #[test]
    fn an_entry_is_found_under_its_key_alone() {
        with_cache("key", |cache, _| {
            assert_eq!(cache.read("norm", "source"), None);
            cache.write("norm", "source", b"code");
            assert_eq!(cache.read("norm", "source").as_deref(), Some(&b"code"[..]));
            assert_eq!(cache.read("norm", "other source"), None);
        });
    }

    #[test]
    fn a_damaged_entry_counts_as_none() {
        with_cache("damage", |cache, folder| {
            cache.write("norm", "source", b"some machine code");
            let path = std::fs::read_dir(folder).expect("written").next().expect("one entry").expect("readable").path();
            let whole = std::fs::read(&path).expect("written");
            for cut in [0, 10, HEADER_BYTES, whole.len() - 1] {
                std::fs::write(&path, &whole[..cut]).expect("writable");
                assert_eq!(cache.read("norm", "source"), None, "{cut} bytes left");
            }
            let mut flipped = whole;
            *flipped.last_mut().expect("not empty") ^= 1;
            std::fs::write(&path, flipped).expect("writable");
            assert_eq!(cache.read("norm", "source"), None);
        });
    }

    /// A process that is killed between writing and moving leaves a partial file; the next writer removes it.
    #[test]
    fn what_killed_processes_left_is_removed() {
        with_cache("killed", |cache, folder| {
            std::fs::create_dir_all(folder).expect("writable");
            let left = folder.join("norm-1.cubin.77-0.partial");
            std::fs::write(&left, b"half of").expect("writable");
            cache.write("norm", "source", b"code");
            assert!(!left.exists());
            assert_eq!(cache.read("norm", "source").as_deref(), Some(&b"code"[..]));
        });
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let cache = Cache::none();
        cache.write("norm", "source", b"code");
        assert_eq!(cache.read("norm", "source"), None);
    }
}
