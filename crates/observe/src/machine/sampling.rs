//! Watching a machine for some seconds.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::process::{cpu_seconds, ticks_per_second};
use super::{GpuMoment, Moment};

/// Takes moments at a steady pace, and the processor time of some processes over all of them.
pub struct Sampler {
    root: PathBuf,
    began: Instant,
    moments: Vec<Moment>,
    cpu_at_start: HashMap<u32, f64>,
}

impl Sampler {
    pub fn new(root: &Path, processes: &[u32]) -> Self {
        let cpu_at_start = processes.iter().filter_map(|&pid| Some((pid, cpu_seconds(root, pid)?))).collect();
        Self { root: root.to_owned(), began: Instant::now(), moments: Vec::new(), cpu_at_start }
    }

    /// Takes `count` moments, `pause` apart; `gpus` reads the cards at each.
    pub fn sample(&mut self, count: usize, pause: Duration, mut gpus: impl FnMut() -> Vec<GpuMoment>) {
        for number in 0..count {
            if number > 0 {
                std::thread::sleep(pause);
            }
            let moment = read_moment(&self.root);
            self.moments.push(Moment { at_s: self.began.elapsed().as_secs_f64(), gpus: gpus(), ..moment });
        }
    }

    /// Processors that a process kept busy since the start.
    pub fn cpus(&self, pid: u32) -> Option<f64> {
        let seconds = self.began.elapsed().as_secs_f64();
        let now = cpu_seconds(&self.root, pid)?;
        Some((now - self.cpu_at_start.get(&pid)?) / seconds.max(1e-3))
    }

    pub fn into_moments(self) -> Vec<Moment> {
        self.moments
    }
}

/// The kernel's counters now.
pub fn read_moment(root: &Path) -> Moment {
    let counters = fs::read_to_string(root.join("proc/vmstat")).unwrap_or_default();
    let counter = |key: &str| {
        let found = counters.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        found.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let stat = fs::read_to_string(root.join("proc/stat")).unwrap_or_default();
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<f64> = all.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let seconds = |index: usize| ticks.get(index).copied().unwrap_or(0.0) / ticks_per_second();
    // User, nice, system, then idle and waiting for disks, then interrupts and what the hypervisor took.
    let busy: f64 = [0, 1, 2, 5, 6, 7].into_iter().map(seconds).sum();
    let page = page_bytes();
    Moment {
        swapped_in_bytes: counter("pswpin") * page,
        swapped_out_bytes: counter("pswpout") * page,
        major_faults: counter("pgmajfault"),
        cpu_busy_s: busy,
        cpu_waiting_s: seconds(4),
        ..Moment::default()
    }
}

fn page_bytes() -> u64 {
    // SAFETY: asks for a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("proc");
        fs::create_dir_all(&folder).expect("writable");
        fs::write(folder.join("vmstat"), "pswpin_x 7\npswpin 3\npswpout 5\npgmajfault 11\n").expect("writable");
        fs::write(folder.join("stat"), "cpu  100 0 50 900 25 10 0 0\ncpu0 1 1 1 1 1 1 1 1\n").expect("writable");
        let moment = read_moment(root.path());
        assert_eq!(moment.swapped_in_bytes, 3 * page_bytes());
        assert_eq!(moment.swapped_out_bytes, 5 * page_bytes());
        assert_eq!(moment.major_faults, 11);
        assert_eq!(moment.cpu_busy_s, 160.0 / ticks_per_second());
        assert_eq!(moment.cpu_waiting_s, 25.0 / ticks_per_second());
    }

    #[test]
    fn a_process_that_works_is_seen_to_work() {
        let own = std::process::id();
        let mut sampler = Sampler::new(Path::new("/"), &[own]);
        let until = Instant::now() + Duration::from_millis(150);
        let mut sum = 0u64;
        while Instant::now() < until {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        sampler.sample(2, Duration::from_millis(1), Vec::new);
        assert!(sum > 0 && sampler.cpus(own).expect("running") > 0.0);
        assert_eq!(sampler.into_moments().len(), 2);
    }
}
