//! How far runs are.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::Metrics;
use super::metrics::StepPoint;
use crate::ObserveError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    Running,
    /// Asked to stop; it can go on.
    Stopped,
    Finished,
    /// Ended by an error, or gone without a word.
    Failed,
}

/// One run, as `status` lists it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunStatus {
    pub run: PathBuf,
    /// 0 where the folder does not say.
    pub pid: u32,
    pub state: RunState,
    pub step: u64,
    /// 0 where the folder does not say.
    pub steps: u64,
    pub loss: Option<f64>,
    /// 0 for a run that has ended; unknown where the folder does not say how many steps there are.
    pub left_s: Option<f64>,
    pub gpu_used_bytes: u64,
    pub host_used_bytes: u64,
    /// Seconds since something was written.
    pub silent_s: f64,
}

/// What the run writes of itself.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct StateFile {
    pid: Option<u32>,
    state: Option<RunState>,
    step: u64,
    steps: u64,
    left_s: Option<f64>,
}

/// Enough for the last lines of a metrics file.
const TAIL_BYTES: u64 = 64 << 10;
/// Updates over which the time that is left is reckoned.
const RECENT: usize = 50;
/// A run without a state file that wrote within this time is taken for one that goes on.
const LIVELY_S: f64 = 300.0;

/// The run in a folder.
pub fn run_status(run: &Path) -> Result<RunStatus, ObserveError> {
    status_under(Path::new("/"), run)
}

/// The runs below a folder, or the folder itself if it is a run, by name.
pub fn list_runs(folder: &Path) -> Result<Vec<RunStatus>, ObserveError> {
    if holds_run(folder) {
        return Ok(vec![run_status(folder)?]);
    }
    let entries = fs::read_dir(folder).map_err(|e| ObserveError::io(folder, e))?;
    let mut folders: Vec<PathBuf> =
        entries.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| holds_run(path)).collect();
    folders.sort();
    folders.iter().map(|run| run_status(run)).collect()
}

fn holds_run(folder: &Path) -> bool {
    folder.join("metrics.jsonl").is_file() || folder.join("state.json").is_file()
}

/// `root` is where `proc` lies.
fn status_under(root: &Path, run: &Path) -> Result<RunStatus, ObserveError> {
    if !holds_run(run) {
        return Err(ObserveError::NoRun { path: run.to_owned() });
    }
    let state: StateFile =
        fs::read(run.join("state.json")).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let metrics = Metrics::last_of(run, TAIL_BYTES)?;
    let last = metrics.steps.last().copied().unwrap_or_default();
    let silent_s = silent_s(run);
    let step = last.step.max(state.step);
    let found = found_state(root, run, &state, silent_s);
    let left_s = match found {
        RunState::Running if state.steps > 0 => {
            state.left_s.or_else(|| Some(seconds_left(&metrics.steps, state.steps.saturating_sub(step))))
        }
        RunState::Running => None,
        _ => Some(0.0),
    };
    Ok(RunStatus {
        run: run.to_owned(),
        pid: state.pid.unwrap_or(0),
        state: found,
        step,
        steps: state.steps,
        loss: Some(last.loss).filter(|loss| last.step > 0 && loss.is_finite()),
        left_s,
        gpu_used_bytes: last.gpu_used_bytes,
        host_used_bytes: last.host_rss_bytes,
        silent_s,
    })
}

/// A run that says it is running and whose process is gone has failed. Without a state file, the folder's age decides.
fn found_state(root: &Path, run: &Path, state: &StateFile, silent_s: f64) -> RunState {
    let alive = |pid: u32| root.join("proc").join(pid.to_string()).exists();
    match (state.state, state.pid) {
        (Some(RunState::Running), Some(pid)) if !alive(pid) => RunState::Failed,
        (Some(known), _) => known,
        (None, _) if run.join("final").is_dir() => RunState::Finished,
        (None, _) if silent_s < LIVELY_S => RunState::Running,
        (None, _) => RunState::Stopped,
    }
}

fn seconds_left(steps: &[StepPoint], left: u64) -> f64 {
    let recent = &steps[steps.len().saturating_sub(RECENT)..];
    let seconds: f64 = recent.iter().map(|point| point.step_ms / 1e3).filter(|s| s.is_finite()).sum();
    seconds / recent.len().max(1) as f64 * left as f64
}

/// Since the newest of the files that a run writes as it goes.
fn silent_s(run: &Path) -> f64 {
    let changed = |name: &str| fs::metadata(run.join(name)).and_then(|data| data.modified()).ok();
    let newest = ["metrics.jsonl", "state.json", "log.txt"].into_iter().filter_map(changed).max();
    let age = newest.and_then(|time| SystemTime::now().duration_since(time).ok());
    age.map_or(0.0, |age| age.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
        fs::write(path, text).expect("writable");
    }

    const METRICS: &str = "{\"step\":1,\"loss\":3.0,\"step_ms\":1000}\n{\"step\":2,\"loss\":2.5,\"step_ms\":3000,\
                           \"host_rss_bytes\":77}\n{\"step\":3,\"lo";

    #[test]
    fn a_run_that_lost_its_process_has_failed() {
        let root = tempfile::tempdir().expect("a folder");
        let run = root.path().join("runs/a");
        write(&run, "metrics.jsonl", METRICS);
        write(&run, "state.json", r#"{"pid": 77, "state": "running", "step": 2, "steps": 10, "started": 0}"#);
        assert_eq!(status_under(root.path(), &run).expect("a run").state, RunState::Failed);
        fs::create_dir_all(root.path().join("proc/77")).expect("writable");
        let status = status_under(root.path(), &run).expect("a run");
        assert_eq!((status.state, status.step, status.steps, status.pid), (RunState::Running, 2, 10, 77));
        assert_eq!((status.loss, status.left_s, status.host_used_bytes), (Some(2.5), Some(16.0), 77));
    }

    #[test]
    fn without_a_state_file_the_folder_speaks() {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), "a/metrics.jsonl", METRICS);
        write(root.path(), "b/metrics.jsonl", METRICS);
        fs::create_dir_all(root.path().join("b/final")).expect("writable");
        write(root.path(), "c/notes.txt", "no run");
        let states: Vec<RunState> = list_runs(root.path()).expect("readable").iter().map(|run| run.state).collect();
        assert_eq!(states, [RunState::Running, RunState::Finished]);
        assert!(matches!(run_status(&root.path().join("c")), Err(ObserveError::NoRun { .. })));
    }

    #[test]
    fn a_half_written_state_file_is_passed_over() {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), "a/metrics.jsonl", METRICS);
        write(root.path(), "a/state.json", "{\"pid\": 7");
        assert_eq!(run_status(&root.path().join("a")).expect("a run").step, 2);
    }
}
