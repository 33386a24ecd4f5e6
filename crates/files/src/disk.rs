//! Room on a disk.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Free bytes of the disk that `path`, or the nearest folder above it that exists, lies on.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let absolute = std::path::absolute(path).ok()?;
    let there = absolute.ancestors().find(|folder| folder.exists())?;
    let name = CString::new(there.as_os_str().as_bytes()).ok()?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `name` ends with a zero and `stat` has room for what the call writes.
    let done = unsafe { libc::statvfs(name.as_ptr(), stat.as_mut_ptr()) };
    if done != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it has filled the structure.
    let stat = unsafe { stat.assume_init() };
    Some(stat.f_bavail * stat.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_room_also_below_folders_to_come() {
        let here = tempfile::tempdir().expect("a folder");
        assert!(free_bytes(here.path()).is_some_and(|bytes| bytes > 0));
        assert!(free_bytes(&here.path().join("not/yet/there")).is_some());
    }
}
