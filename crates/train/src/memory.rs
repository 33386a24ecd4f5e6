//! The process's own memory, as the kernel counts it.

use std::fs;

/// A line such as `VmHWM:  1234 kB`.
fn status_bytes(file: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
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
    let number = |path: &str| fs::read_to_string(path).ok().and_then(|t| t.trim().parse::<u64>().ok());
    let limit = number("/sys/fs/cgroup/memory.max");
    let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
    match limit {
        Some(limit) => free.min(limit.saturating_sub(used)),
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
