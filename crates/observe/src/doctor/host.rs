//! The host's memory, processors and disks.

use super::course::Course;
use super::problem::Problem;
use crate::machine::{Group, Host, Machine};

/// Slower swapping than this is the kernel tidying up.
pub(super) const SWAPPING_BYTES_PER_S: f64 = 1048576.0;
const SWAP_IN_USE_SHARE: f64 = 0.25;
const NEARLY_FULL: f64 = 0.1;
/// Tasks that want to run, for each processor.
const OVERLOADED: f64 = 1.5;
const DISK_SHARE_MIN: f64 = 0.05;
const DISK_BYTES_WANTED: u64 = 20 << 30;
/// Docker's default is 64 MiB; loaders with worker processes pass batches through it.
const SHARED_MEMORY_BYTES_MIN: u64 = 1 << 30;

pub fn problems(machine: &Machine, course: &Course) -> Vec<Problem> {
    let host = &machine.host;
    let mut found = Vec::new();
    found.extend(swap(host, course));
    found.extend(memory(host));
    if let Some(Group { kills, limit_bytes, .. }) = host.group.as_ref().filter(|group| group.kills > 0) {
        found.push(Problem::GroupKilled { kills: *kills, limit_bytes: *limit_bytes });
    }
    if host.cpus > 0.0 && host.load > OVERLOADED * host.cpus {
        found.push(Problem::Overloaded { load: host.load, cpus: host.cpus });
    }
    for disk in host.disks.iter().filter(|disk| disk.total_bytes > 0) {
        let share = disk.available_bytes as f64 / disk.total_bytes as f64;
        if share < DISK_SHARE_MIN && disk.available_bytes < DISK_BYTES_WANTED {
            let (available_bytes, total_bytes) = (disk.available_bytes, disk.total_bytes);
            found.push(Problem::DiskFull { path: disk.path.clone(), available_bytes, total_bytes });
        }
    }
    let shared = host.shared_memory.as_ref().map(|disk| disk.total_bytes);
    if let Some(total_bytes) = shared.filter(|&bytes| bytes > 0 && bytes < SHARED_MEMORY_BYTES_MIN) {
        found.push(Problem::SharedMemorySmall { total_bytes });
    }
    found
}

/// Pages on their way cost time; pages that once went out and stay there do not.
fn swap(host: &Host, course: &Course) -> Option<Problem> {
    let used_bytes = host.swap_used_bytes;
    if course.swap_bytes_per_s > SWAPPING_BYTES_PER_S {
        let gpu_busy_percent = course.gpu_busy_percent();
        return Some(Problem::Swapping { bytes_per_s: course.swap_bytes_per_s, used_bytes, gpu_busy_percent });
    }
    let share = used_bytes as f64 / host.swap_total_bytes.max(1) as f64;
    (share > SWAP_IN_USE_SHARE).then_some(Problem::SwapInUse { used_bytes })
}

/// Whichever limit is nearer: that of the group, or the machine's own memory.
fn memory(host: &Host) -> Vec<Problem> {
    let mut found = Vec::new();
    if let Some(Group { limit_bytes, used_bytes, version, .. }) = host.group
        && limit_bytes.saturating_sub(used_bytes) as f64 <= NEARLY_FULL * limit_bytes as f64
    {
        found.push(Problem::GroupNearLimit { used_bytes, limit_bytes, version });
    }
    let (available_bytes, total_bytes) = (host.available_bytes, host.total_bytes);
    if total_bytes > 0 && (available_bytes as f64) < NEARLY_FULL * total_bytes as f64 {
        found.push(Problem::HostFull { available_bytes, limit_bytes: total_bytes });
    }
    found
}
