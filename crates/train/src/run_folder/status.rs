//! `state.json`: how far a run is, for whoever looks at it from outside, and the request to stop.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_files::{Lock, publish, write};
use serde::{Deserialize, Serialize};

use super::MARKER_FILE;
use crate::event::StepEvent;

pub(super) const STATE_FILE: &str = "state.json";
pub(super) const STOP_FILE: &str = "stop";

/// Where a run is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunPhase {
    Running,
    /// Asked to stop; its state is saved.
    Stopped,
    Finished,
    /// Ended by an error, or killed.
    Failed,
}

/// What `state.json` says. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    pub pid: u32,
    pub state: RunPhase,
    pub step: u64,
    pub steps: u64,
    pub loss: Option<f64>,
    /// Seconds that are left, by the updates so far.
    pub left_s: Option<f64>,
    pub host_bytes: u64,
    pub gpu_bytes: u64,
    pub started: u64,
    pub updated: u64,
}

/// Whether a run is under way in a folder, its preparation included.
pub fn is_under_way(folder: &Path) -> bool {
    Lock::is_held(&folder.join(MARKER_FILE))
}

/// The state of the run in a folder; `None` if it holds none that was begun.
pub fn run_status(folder: &Path) -> Option<RunStatus> {
    let mut status = read(folder)?;
    // Who has the lock is alive, whatever the file says, and who does not is not.
    status.state = match (is_under_way(folder), status.state) {
        (true, _) => RunPhase::Running,
        (false, RunPhase::Running) => RunPhase::Failed,
        (false, ended) => ended,
    };
    Some(status)
}

pub(super) fn read(folder: &Path) -> Option<RunStatus> {
    serde_json::from_slice(&std::fs::read(folder.join(STATE_FILE)).ok()?).ok()
}

/// The runs below a folder, and the folder itself if it is one, by path.
pub fn list_runs(folder: &Path) -> Vec<(PathBuf, RunStatus)> {
    let below = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<_> = below
        .chain([folder.to_owned()])
        .filter(|path| path.join(MARKER_FILE).is_file())
        .filter_map(|path| run_status(&path).map(|status| (path, status)))
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Asks the run in a folder to save and stop after the update it is in; `false` if no run is under way there.
pub fn request_stop(folder: &Path) -> io::Result<bool> {
    if !is_under_way(folder) {
        return Ok(false);
    }
    write(&folder.join(STOP_FILE), b"")?;
    Ok(true)
}

/// How often the file is written while nothing but the update changes.
const INTERVAL: Duration = Duration::from_secs(2);

/// Keeps `state.json` up to date.
pub(super) struct StatusFile {
    path: PathBuf,
    status: RunStatus,
    written: Option<Instant>,
    began: Instant,
    first_step: u64,
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl StatusFile {
    pub fn new(folder: &Path, step: u64, steps: u64) -> Self {
        let status = RunStatus {
            pid: std::process::id(),
            state: RunPhase::Running,
            step,
            steps,
            loss: None,
            left_s: None,
            host_bytes: 0,
            gpu_bytes: 0,
            started: now(),
            updated: now(),
        };
        Self { path: folder.join(STATE_FILE), status, written: None, began: Instant::now(), first_step: step }
    }

    pub fn step(&mut self, event: &StepEvent) {
        let Self { status, began, first_step, .. } = self;
        status.step = event.step;
        status.loss = Some(event.loss).filter(|loss| loss.is_finite());
        (status.host_bytes, status.gpu_bytes) = (event.host_rss_bytes, event.gpu_used_bytes);
        let done = event.step.saturating_sub(*first_step).max(1) as f64;
        let left = status.steps.saturating_sub(event.step) as f64;
        status.left_s = Some(began.elapsed().as_secs_f64() / done * left);
        if self.written.is_none_or(|written| written.elapsed() >= INTERVAL) {
            // Nothing depends on it, and a disk that refuses this refuses the metrics, which is said.
            let _ = self.write(publish);
        }
    }

    pub fn turn_to(&mut self, phase: RunPhase) -> io::Result<()> {
        self.status.state = phase;
        self.write(write)
    }

    fn write(&mut self, how: fn(&Path, &[u8]) -> io::Result<()>) -> io::Result<()> {
        self.written = Some(Instant::now());
        self.status.updated = now();
        how(&self.path, &serde_json::to_vec(&self.status).expect("plain data"))
    }
}
