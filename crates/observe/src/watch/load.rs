//! What the machine does while a run is watched.

use std::path::Path;
use std::time::Instant;

use crate::machine::{read_host, read_moment};

/// Between two looks. Of a machine on which the run may not be, if its folder is shared.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    /// Of all processors; unknown at the first look.
    pub cpu_percent: Option<f64>,
    pub cpus: f64,
    pub host_used_bytes: u64,
    pub host_bytes: u64,
    pub swapped_bytes: u64,
    pub cards: Vec<CardLoad>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct CardLoad {
    pub busy_percent: f64,
    pub used_bytes: u64,
    pub total_bytes: u64,
    pub power_w: Option<f64>,
    pub temperature_c: Option<f64>,
}

/// Looks at the machine again and again.
#[derive(Default)]
pub struct LoadGauge {
    /// When it was looked at, and the processor seconds until then.
    before: Option<(Instant, f64)>,
}

impl LoadGauge {
    /// `root` is where `proc` lies.
    pub fn read(&mut self, root: &Path, cards: Vec<CardLoad>) -> Load {
        let host = read_host(root, &[]);
        let (now, busy_s) = (Instant::now(), read_moment(root).cpu_busy_s);
        let cpu_percent = self.before.and_then(|(before, busy_before)| {
            let seconds = now.duration_since(before).as_secs_f64() * host.cpus;
            (seconds > 0.0).then(|| (100.0 * (busy_s - busy_before) / seconds).clamp(0.0, 100.0))
        });
        self.before = Some((now, busy_s));
        Load {
            cpu_percent,
            cpus: host.cpus,
            host_used_bytes: host.total_bytes.saturating_sub(host.available_bytes),
            host_bytes: host.total_bytes,
            swapped_bytes: host.swap_used_bytes,
            cards,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_machine_is_seen_to_work() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(root.path().join("proc").join(name), text).expect("writable");
        fs::create_dir_all(root.path().join("proc")).expect("writable");
        write("meminfo", "MemTotal: 4096 kB\nMemAvailable: 1024 kB\nSwapTotal: 100 kB\nSwapFree: 50 kB\n");
        write("stat", "cpu  100 0 0 900 0 0 0 0\n");
        let mut gauge = LoadGauge::default();
        let first = gauge.read(root.path(), vec![CardLoad { busy_percent: 7.0, ..CardLoad::default() }]);
        assert_eq!((first.cpu_percent, first.cards[0].busy_percent), (None, 7.0));
        assert_eq!((first.host_used_bytes, first.host_bytes, first.swapped_bytes), (3 << 20, 4 << 20, 50 << 10));
        // More than all processors can do in that time.
        write("stat", "cpu  100000000 0 0 900 0 0 0 0\n");
        assert_eq!(gauge.read(root.path(), Vec::new()).cpu_percent, Some(100.0));
        assert_eq!(gauge.read(root.path(), Vec::new()).cpu_percent, Some(0.0));
    }
}
