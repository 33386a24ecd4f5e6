//! The process's own memory and that of its machine, as the kernel counts them; and a watch over both while a run goes on.

mod groups;
mod judge;
mod kernel;
mod watch;

use std::fs;
use std::path::Path;

pub use groups::{Group, read_group};
pub(crate) use judge::Finding;
pub use judge::{MemoryWarning, Overgrowth};
pub use kernel::Resident;
use kernel::kibibytes;
pub(crate) use watch::MemoryWatch;
pub use watch::Watching;

fn status_bytes(file: &str, key: &str) -> Option<u64> {
    kibibytes(&fs::read_to_string(file).ok()?, key)
}

/// Memory of this process that is in RAM now; 0 where the kernel does not tell.
pub fn resident_bytes() -> u64 {
    status_bytes("/proc/self/status", "VmRSS:").unwrap_or(0)
}

/// The most that was ever in RAM at one time.
pub fn peak_resident_bytes() -> u64 {
    status_bytes("/proc/self/status", "VmHWM:").unwrap_or(0)
}

/// What can be taken without pushing anything out: free memory, bounded by the control group's limit.
pub fn host_available_bytes() -> u64 {
    let free = status_bytes("/proc/meminfo", "MemAvailable:").unwrap_or(4 << 30);
    match read_group(Path::new("/")) {
        Some(group) => free.min(group.limit_bytes.saturating_sub(group.used_bytes)),
        None => free,
    }
}

/// Gives memory that was freed back to the system, so that it is not counted against the plan.
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim takes any value and only releases memory nobody holds.
    unsafe {
        libc::malloc_trim(0);
    }
}
