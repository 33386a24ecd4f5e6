//! How far runs are.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use plimsoll_train::RunPhase as RunState;
use plimsoll_train::is_under_way;
use serde::Serialize;

use super::Metrics;
use crate::ObserveError;

/// One run, as `status` lists it, with what its metrics say.
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
    /// 0 for a run that has ended; unknown before the first update.
    pub left_s: Option<f64>,
    pub gpu_used_bytes: u64,
    pub host_used_bytes: u64,
    /// Seconds since something was written.
    pub silent_s: f64,
}

/// Enough for the last lines of a metrics file.
const TAIL_BYTES: u64 = 64 << 10;

/// The run in a folder. Its state is what [`plimsoll_train::run_status`] says, which goes by the run's lock: a number of a
/// process may be somebody else's by now.
pub fn run_status(run: &Path) -> Result<RunStatus, ObserveError> {
    if !holds_run(run) {
        return Err(ObserveError::NoRun { path: run.to_owned() });
    }
    let known = plimsoll_train::run_status(run);
    let metrics = Metrics::last_of(run, TAIL_BYTES)?;
    let last = metrics.steps.last().copied().unwrap_or_default();
    let state = known.as_ref().map_or_else(|| state_unsaid(run), |known| known.state);
    let left_s = known.as_ref().and_then(|known| known.left_s);
    Ok(RunStatus {
        run: run.to_owned(),
        pid: known.as_ref().map_or(0, |known| known.pid),
        state,
        // The metrics have every update, the other file one every other second.
        step: last.step.max(known.as_ref().map_or(0, |known| known.step)),
        steps: known.as_ref().map_or(0, |known| known.steps),
        loss: Some(last.loss).filter(|loss| last.step > 0 && loss.is_finite()),
        left_s: if state == RunState::Running { left_s } else { Some(0.0) },
        gpu_used_bytes: last.gpu_used_bytes,
        host_used_bytes: last.host_rss_bytes,
        silent_s: silent_s(run),
    })
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
    // One that vanishes meanwhile is no longer a run.
    Ok(folders.iter().filter_map(|run| run_status(run).ok()).collect())
}

/// Also one that is being prepared and has written nothing yet.
fn holds_run(folder: &Path) -> bool {
    folder.join("metrics.jsonl").is_file() || folder.join("state.json").is_file() || is_under_way(folder)
}

/// The state of a run that has no word of itself in its folder: it is being prepared, or what is left of it tells.
fn state_unsaid(run: &Path) -> RunState {
    match (is_under_way(run), run.join("final").is_dir()) {
        (true, _) => RunState::Running,
        (false, true) => RunState::Finished,
        (false, false) => RunState::Stopped,
    }
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
    use std::fs::File;

    use super::*;

    fn write(folder: &Path, name: &str, text: &str) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
        fs::write(path, text).expect("writable");
    }

    /// As the process that writes a run holds it.
    fn lock(run: &Path) -> File {
        write(run, ".plimsoll-run", "");
        let file = File::options().write(true).open(run.join(".plimsoll-run")).expect("readable");
        file.lock().expect("free");
        file
    }

    const METRICS: &str = "{\"step\":1,\"loss\":3.0,\"step_ms\":1000}\n{\"step\":2,\"loss\":2.5,\"step_ms\":3000,\
                           \"host_rss_bytes\":77}\n{\"step\":3,\"lo";

    fn state(state: &str, pid: u32) -> String {
        format!(
            r#"{{"pid": {pid}, "state": "{state}", "step": 1, "steps": 10, "loss": 3.0, "left_s": 16.0, "host_bytes": 77,
                "gpu_bytes": 0, "started": 0, "updated": 0}}"#
        )
    }

    /// By its lock, whatever process has its number now.
    #[test]
    fn a_run_that_lost_its_lock_has_failed() {
        let root = tempfile::tempdir().expect("a folder");
        let run = root.path().join("a");
        write(&run, "metrics.jsonl", METRICS);
        write(&run, "state.json", &state("running", std::process::id()));
        let failed = run_status(&run).expect("a run");
        assert_eq!((failed.state, failed.left_s), (RunState::Failed, Some(0.0)));
        let held = lock(&run);
        let status = run_status(&run).expect("a run");
        assert_eq!((status.state, status.step, status.steps), (RunState::Running, 2, 10));
        assert_eq!((status.loss, status.left_s, status.host_used_bytes), (Some(2.5), Some(16.0), 77));
        drop(held);
        write(&run, "state.json", &state("stopped", std::process::id()));
        assert_eq!(run_status(&run).expect("a run").state, RunState::Stopped);
    }

    /// The same words as those of `plimsoll status` and `plimsoll stop`.
    #[test]
    fn both_lists_agree() {
        let root = tempfile::tempdir().expect("a folder");
        for (name, said) in [("a", "running"), ("b", "stopped"), ("c", "finished"), ("d", "failed"), ("e", "running")] {
            write(root.path(), &format!("{name}/metrics.jsonl"), METRICS);
            write(root.path(), &format!("{name}/state.json"), &state(said, 1));
            write(root.path(), &format!("{name}/.plimsoll-run"), "");
        }
        let _held = lock(&root.path().join("e"));
        let here = list_runs(root.path()).expect("readable");
        let here: Vec<_> = here.into_iter().map(|run| (run.run, run.state, run.pid)).collect();
        let there = plimsoll_train::list_runs(root.path()).into_iter();
        let there: Vec<_> = there.map(|(path, status)| (path, status.state, status.pid)).collect();
        assert_eq!((here.len(), &here), (5, &there));
    }

    #[test]
    fn without_a_state_file_the_folder_speaks() {
        let root = tempfile::tempdir().expect("a folder");
        write(root.path(), "a/metrics.jsonl", METRICS);
        write(root.path(), "b/metrics.jsonl", METRICS);
        fs::create_dir_all(root.path().join("b/final")).expect("writable");
        write(root.path(), "c/notes.txt", "no run");
        write(root.path(), "d/.plimsoll-run", "left by one that was killed before it began");
        let _held = lock(&root.path().join("e"));
        let found = list_runs(root.path()).expect("readable");
        let states: Vec<RunState> = found.iter().map(|run| run.state).collect();
        assert_eq!(states, [RunState::Stopped, RunState::Finished, RunState::Running], "{found:?}");
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
