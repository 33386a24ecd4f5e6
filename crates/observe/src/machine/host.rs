//! Memory, processors and disks, as the kernel tells of them.

use std::ffi::CString;
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use plimsoll_train::read_group;

use super::{Disk, Host};

/// Reads `/proc` and `/sys` under `root`, and the file systems that hold `folders`.
pub fn read_host(root: &Path, folders: &[&Path]) -> Host {
    let memory = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let bytes = |key| kibibytes(&memory, key).unwrap_or(0);
    let total_bytes = bytes("MemTotal:");
    let group = read_group(root);
    let swap_total_bytes = bytes("SwapTotal:");
    let load = fs::read_to_string(root.join("proc/loadavg")).unwrap_or_default();
    let mut disks: Vec<Disk> = Vec::new();
    for disk in folders.iter().filter_map(|folder| read_disk(folder)) {
        // Two folders of one file system have the same figures.
        if !disks.iter().any(|d| (d.total_bytes, d.available_bytes) == (disk.total_bytes, disk.available_bytes)) {
            disks.push(disk);
        }
    }
    Host {
        total_bytes,
        available_bytes: bytes("MemAvailable:"),
        limit_bytes: group.as_ref().map_or(total_bytes, |group| group.limit_bytes.min(total_bytes)),
        swap_total_bytes,
        swap_used_bytes: swap_total_bytes.saturating_sub(bytes("SwapFree:")),
        cpus: std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64),
        load: load.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
        group,
        shared_memory: read_disk(&root.join("dev/shm")),
        disks,
    }
}

/// NVIDIA's cards on the bus, whether or not a driver serves them.
pub fn cards_on_bus(root: &Path) -> u32 {
    const NVIDIA: &str = "0x10de";
    /// Of displays and of what computes like one.
    const DISPLAY_CLASS: &str = "0x03";
    let devices = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten();
    let is_card = |device: &Path| {
        let says = |name: &str, start| fs::read_to_string(device.join(name)).is_ok_and(|text| text.starts_with(start));
        says("vendor", NVIDIA) && says("class", DISPLAY_CLASS)
    };
    devices.filter(|device| is_card(&device.path())).count() as u32
}

/// The value of a line such as `MemTotal:  1234 kB`, in bytes.
pub(super) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// The file system of a folder; of the nearest one above it that exists.
fn read_disk(folder: &Path) -> Option<Disk> {
    let existing = folder.ancestors().find(|path| path.exists() && path.as_os_str() != "")?;
    let path = CString::new(existing.as_os_str().as_bytes()).ok()?;
    let mut figures = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends with a zero byte, and the kernel fills the figures in if it returns 0.
    let figures = unsafe {
        if libc::statvfs(path.as_ptr(), figures.as_mut_ptr()) != 0 {
            return None;
        }
        figures.assume_init()
    };
    Some(Disk {
        path: existing.display().to_string(),
        total_bytes: figures.f_blocks * figures.f_frsize,
        available_bytes: figures.f_bavail * figures.f_frsize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       32768000 kB\nMemFree:  100 kB\nMemAvailable:   16384000 kB\n\
                           SwapTotal: 2048 kB\nSwapFree: 1024 kB\n";

    #[test]
    fn memory_is_bounded_by_the_group() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
            fs::write(path, text).expect("writable");
        };
        write("proc/meminfo", MEMINFO);
        write("proc/loadavg", "3.50 2.00 1.00 1/100 12345\n");
        let host = read_host(root.path(), &[]);
        assert_eq!(host.total_bytes, 32_768_000 * 1024);
        assert_eq!(host.limit_bytes, host.total_bytes);
        assert_eq!((host.swap_total_bytes, host.swap_used_bytes), (2 << 20, 1 << 20));
        assert_eq!(host.load, 3.5);
        write("proc/self/cgroup", "0::/job\n");
        write("sys/fs/cgroup/job/memory.max", "1048576\n");
        write("sys/fs/cgroup/job/memory.current", "524288\n");
        assert_eq!(read_host(root.path(), &[]).limit_bytes, 1 << 20);
    }

    #[test]
    fn cards_are_counted_without_their_sound() {
        let root = tempfile::tempdir().expect("a folder");
        for (address, vendor, class) in
            [("01:00.0", "0x10de", "0x030000"), ("01:00.1", "0x10de", "0x040300"), ("02:00.0", "0x8086", "0x030000")]
        {
            let device = root.path().join("sys/bus/pci/devices").join(address);
            fs::create_dir_all(&device).expect("writable");
            fs::write(device.join("vendor"), format!("{vendor}\n")).expect("writable");
            fs::write(device.join("class"), format!("{class}\n")).expect("writable");
        }
        assert_eq!(cards_on_bus(root.path()), 1);
    }

    #[test]
    fn a_folder_that_is_yet_to_be_made_lies_on_its_parents_disk() {
        let root = tempfile::tempdir().expect("a folder");
        let disk = read_disk(&root.path().join("runs/one")).expect("a disk");
        assert!(disk.total_bytes >= disk.available_bytes && disk.total_bytes > 0);
    }
}
