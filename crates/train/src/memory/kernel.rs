//! What the kernel says of this process and its machine, read from `/proc` and `/sys`: the real ones, or a recording.

use std::fs;
use std::path::Path;

use super::groups::read_group;

/// Memory of the process, by what backs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resident {
    /// All of it that is in RAM.
    pub total_bytes: u64,
    /// Its own data, in no file.
    pub anonymous_bytes: u64,
    /// Pages of files: code and libraries.
    pub file_bytes: u64,
    pub shared_bytes: u64,
    /// Its own data that was moved out to swap space.
    pub swapped_bytes: u64,
}

/// One look. What the kernel does not tell is 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Sample {
    /// Seconds since watching began.
    pub at_s: f64,
    /// The last update that was done by then.
    pub step: u64,
    pub resident: Resident,
    /// Times the process waited for a page from a disk, since it started.
    pub major_faults: u64,
    /// What can be taken without pushing anything out, and of how much: of the machine or its control group, whichever is
    /// nearer its end.
    pub available_bytes: u64,
    pub total_bytes: u64,
    /// In and out, by anybody, since the machine started.
    pub swap_traffic_bytes: u64,
    /// Share of the last ten seconds in which something waited for memory, in percent.
    pub stalled_percent: f64,
}

impl Sample {
    /// `root` is where `/proc` and `/sys` are.
    pub fn read(root: &Path, at_s: f64, step: u64) -> Self {
        let text = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
        let (available_bytes, total_bytes) = available(root, &text("proc/meminfo"));
        Self {
            at_s,
            step,
            resident: resident(&text("proc/self/status")),
            major_faults: major_faults(&text("proc/self/stat")).unwrap_or(0),
            available_bytes,
            total_bytes,
            swap_traffic_bytes: swap_traffic_bytes(&text("proc/vmstat")),
            stalled_percent: stalled_percent(&text("proc/pressure/memory")).unwrap_or(0.0),
        }
    }
}

/// The value of a line such as `VmRSS:  1234 kB`, in bytes.
pub(super) fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

fn resident(status: &str) -> Resident {
    let bytes = |key| kibibytes(status, key).unwrap_or(0);
    Resident {
        total_bytes: bytes("VmRSS:"),
        anonymous_bytes: bytes("RssAnon:"),
        file_bytes: bytes("RssFile:"),
        shared_bytes: bytes("RssShmem:"),
        swapped_bytes: bytes("VmSwap:"),
    }
}

fn major_faults(stat: &str) -> Option<u64> {
    /// Behind the process's name.
    const FIELD: usize = 9;
    // The name, in parentheses, may hold blanks and parentheses itself.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(FIELD)?.parse().ok()
}

fn available(root: &Path, meminfo: &str) -> (u64, u64) {
    let bytes = |key| kibibytes(meminfo, key).unwrap_or(0);
    let machine = (bytes("MemAvailable:"), bytes("MemTotal:"));
    let group = read_group(root).map(|group| {
        let total = if machine.1 > 0 { group.limit_bytes.min(machine.1) } else { group.limit_bytes };
        (group.limit_bytes.saturating_sub(group.used_bytes), total)
    });
    match group {
        Some(group) if group.0 < machine.0 || machine.1 == 0 => group,
        _ => machine,
    }
}

fn swap_traffic_bytes(vmstat: &str) -> u64 {
    let counter = |key: &str| {
        let found = vmstat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        found.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    (counter("pswpin") + counter("pswpout")) * page_bytes()
}

/// From `some avg10=1.23 avg60=…`.
fn stalled_percent(pressure: &str) -> Option<f64> {
    let line = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

fn page_bytes() -> u64 {
    // SAFETY: asks for a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
            fs::write(path, text).expect("writable");
        }
        root
    }

    #[test]
    fn a_recording_is_read_as_the_kernel_would_be() {
        let stat = "42 (a (b) c) R 1 2 3 4 5 6 7 8 77 10 300 200 0 0";
        let root = recording(&[
            (
                "proc/self/status",
                "Name:\tplimsoll\nVmHWM:\t9000 kB\nVmRSS:\t2048 kB\nRssAnon:\t1024 kB\nRssFile:\t1000 kB\n\
                 RssShmem:\t24 kB\nVmSwap:\t4 kB\n",
            ),
            ("proc/self/stat", stat),
            ("proc/meminfo", "MemTotal:       8000 kB\nMemFree: 10 kB\nMemAvailable:   3000 kB\n"),
            ("proc/vmstat", "pswpin_x 7\npswpin 3\npswpout 5\n"),
            ("proc/pressure/memory", "some avg10=12.50 avg60=1.00 avg300=0.00 total=9\nfull avg10=3.00 total=1\n"),
        ]);
        let sample = Sample::read(root.path(), 1.5, 7);
        let expected = Sample {
            at_s: 1.5,
            step: 7,
            resident: Resident {
                total_bytes: 2048 << 10,
                anonymous_bytes: 1024 << 10,
                file_bytes: 1000 << 10,
                shared_bytes: 24 << 10,
                swapped_bytes: 4 << 10,
            },
            major_faults: 77,
            available_bytes: 3000 << 10,
            total_bytes: 8000 << 10,
            swap_traffic_bytes: 8 * page_bytes(),
            stalled_percent: 12.5,
        };
        assert_eq!(sample, expected);
    }

    #[test]
    fn a_control_group_that_is_nearer_its_end_counts() {
        let files = |limit| {
            recording(&[
                ("proc/self/cgroup", "0::/job\n"),
                ("proc/meminfo", "MemTotal: 8000 kB\nMemAvailable: 3000 kB\n"),
                ("sys/fs/cgroup/job/memory.max", limit),
                ("sys/fs/cgroup/job/memory.current", "1000000\n"),
            ])
        };
        let read = |limit| Sample::read(files(limit).path(), 0.0, 0);
        let tight = read("1500000\n");
        assert_eq!((tight.available_bytes, tight.total_bytes), (500_000, 1_500_000));
        let wide = read("9000000\n");
        assert_eq!((wide.available_bytes, wide.total_bytes), (3000 << 10, 8000 << 10));
    }

    #[test]
    fn a_kernel_that_tells_nothing_is_no_trouble() {
        let empty = tempfile::tempdir().expect("a folder");
        assert_eq!(Sample::read(empty.path(), 0.0, 0), Sample::default());
    }

    #[test]
    fn this_process_has_memory_of_its_own() {
        let Resident { total_bytes, anonymous_bytes, .. } = Sample::read(Path::new("/"), 0.0, 0).resident;
        assert!(total_bytes >= anonymous_bytes && anonymous_bytes > 0);
    }
}
