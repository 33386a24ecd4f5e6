//! The run folder: what was asked, what was planned, what happened. One process at a time has it.
//!
//! A run writes only into a folder that it made or found empty, and leaves a mark there, which is also what it locks.

mod metrics;
mod status;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use plimsoll_files::{Lock, NewFolder, free_bytes, is_named, ops, sweep, write};
use plimsoll_plan::Report;
use serde_json::json;

use crate::TrainError;
use crate::checkpoint::{Resume, set_aside};
use crate::event::Event;
use metrics::MetricsFile;
pub use status::{RunPhase, RunStatus, is_under_way, list_runs, request_stop, run_status};
use status::{STATE_FILE, STOP_FILE, StatusFile};

/// Says that a folder is a run's; its lock says that the run is under way.
const MARKER_FILE: &str = ".plimsoll-run";
const METRICS_FILE: &str = "metrics.jsonl";

/// What a folder has of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    Nothing,
    /// A run that was stopped, killed or ended by an error.
    Unfinished,
    Finished,
}

/// A run's folder, locked.
pub struct RunFolder {
    path: PathBuf,
    /// `None` only once it has been given back.
    lock: Option<Lock>,
    /// Folders made for it, outermost first: gone again if nothing comes of the run.
    made: Vec<PathBuf>,
    open: Option<Open>,
}

/// The files of a run that has begun.
struct Open {
    metrics: MetricsFile,
    status: StatusFile,
    run_yaml: String,
    resumed: bool,
}

impl RunFolder {
    /// Takes a folder for a run: one that is not there yet, that is empty, or that a run has made and nobody uses.
    pub fn claim(path: &Path) -> Result<Self, TrainError> {
        let mut made = Vec::new();
        let result = make_with_parents(path, &mut made).and_then(|()| Self::take(path, made.clone()));
        if result.is_err() {
            unmake(&made);
        }
        result
    }

    /// Takes a new folder of that name, or the first numbered one that is free.
    pub fn claim_new(runs: &Path, name: &str) -> Result<Self, TrainError> {
        let mut made = Vec::new();
        make_with_parents(runs, &mut made)?;
        let candidates = std::iter::once(runs.join(name)).chain((2..).map(|n| runs.join(format!("{name}-{n}"))));
        for path in candidates {
            match ops::create_folder(&path) {
                Ok(()) => {}
                // One that was killed before it began has left a folder that is as good as new.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if !path.join(MARKER_FILE).is_file() || path.join(METRICS_FILE).exists() {
                        continue;
                    }
                }
                Err(error) => {
                    unmake(&made);
                    return Err(TrainError::io(&path, error));
                }
            }
            made.push(path.clone());
            // Somebody else may be quicker: to take it, to begin a run in it, or to give it back.
            match Self::take(&path, made.clone()) {
                Ok(taken) if taken.holds() == Holds::Nothing => return Ok(taken),
                Ok(_) | Err(TrainError::InUse { .. }) => {}
                Err(TrainError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                failed => return failed,
            }
            made.retain(|folder| *folder != path);
        }
        unreachable!("numbers do not end")
    }

    fn take(path: &Path, made: Vec<PathBuf>) -> Result<Self, TrainError> {
        let marker = path.join(MARKER_FILE);
        let is_marked = marker.is_file();
        if !is_marked {
            let mut entries = fs::read_dir(path).map_err(|e| TrainError::io(path, e))?;
            if entries.next().is_some() {
                return Err(TrainError::NotARun { path: path.to_owned() });
            }
        }
        let in_use = || TrainError::InUse { path: path.to_owned(), pid: status::read(path).map(|status| status.pid) };
        let asked_before = File::open(path.join(STOP_FILE)).ok();
        let mut lock = Lock::acquire(&marker).map_err(|e| TrainError::io(path, e))?.ok_or_else(in_use)?;
        let marked = leave_mark(path, &mut lock, asked_before.as_ref());
        if let Err(error) = marked {
            // What this mark was made for does not come.
            if !is_marked {
                let _ = lock.remove();
            }
            return Err(TrainError::io(path, error));
        }
        Ok(Self { path: path.to_owned(), lock: Some(lock), made, open: None })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn holds(&self) -> Holds {
        if !self.path.join(METRICS_FILE).exists() {
            return Holds::Nothing;
        }
        match status::read(&self.path).map(|status| status.state) {
            Some(RunPhase::Finished) => Holds::Finished,
            _ => Holds::Unfinished,
        }
    }

    /// Begins a run of so many updates, or goes on with the one that is here: without a checkpoint, from its beginning.
    pub fn begin(
        &mut self,
        run_yaml: &str,
        report: &Report,
        steps: u64,
        resume: Option<&Resume>,
    ) -> Result<(), TrainError> {
        let path = self.path.clone();
        sweep(&path);
        sweep(&path.join("checkpoints"));
        let step = resume.map_or(0, Resume::step);
        set_aside(&path, step)?;
        let put = |name: &str, bytes: &[u8]| {
            let path = path.join(name);
            write(&path, bytes).map_err(|e| TrainError::io(&path, e))
        };
        let mut status = StatusFile::new(&path, step, steps);
        status.turn_to(RunPhase::Running).map_err(|e| TrainError::io(&path.join(STATE_FILE), e))?;
        put("run.yaml", run_yaml.as_bytes())?;
        put("plan.json", &serde_json::to_vec_pretty(report).expect("a report is plain data"))?;
        let metrics = path.join(METRICS_FILE);
        let metrics = MetricsFile::open(&metrics, step).map_err(|e| TrainError::io(&metrics, e))?;
        self.open = Some(Open { metrics, status, run_yaml: run_yaml.to_owned(), resumed: resume.is_some() });
        Ok(())
    }

    fn open(&mut self) -> &mut Open {
        self.open.as_mut().expect("the run has begun")
    }

    /// `log.txt`, for whoever words what happened; a run that goes on adds to it.
    pub fn open_log(&self) -> Result<File, TrainError> {
        let path = self.path.join("log.txt");
        let log = ops::append(&path).map_err(|e| TrainError::io(&path, e))?;
        if !self.open.as_ref().is_some_and(|open| open.resumed) {
            log.set_len(0).map_err(|e| TrainError::io(&path, e))?;
        }
        Ok(log)
    }

    /// Appends a line to `metrics.jsonl`. A line that could not be written is tried again with the next.
    pub(crate) fn record(&mut self, event: &Event) -> Result<(), TrainError> {
        if let Event::Step(step) = event {
            self.open().status.step(step);
        }
        let line = match event {
            Event::Step(step) => json!(step),
            Event::Eval { step, eval } => json!({"step": step, "eval": eval}),
            Event::Skipped { step, skip } => json!({"step": step, "skipped": skip}),
            Event::MicroBatch { .. } | Event::Saved { .. } | Event::Resumed(_) | Event::Warning { .. } => return Ok(()),
        };
        let path = self.path.join(METRICS_FILE);
        self.open().metrics.append(&line.to_string()).map_err(|e| TrainError::io(&path, e))
    }

    /// Waits until all lines so far are on the disk.
    pub(crate) fn sync(&mut self) -> Result<(), TrainError> {
        let path = self.path.join(METRICS_FILE);
        self.open().metrics.sync().map_err(|e| TrainError::io(&path, e))
    }

    pub(crate) fn run_yaml(&self) -> &str {
        self.open.as_ref().map_or("", |open| &open.run_yaml)
    }

    /// Whether somebody asked the run to stop.
    pub(crate) fn is_asked_to_stop(&self) -> bool {
        self.path.join(STOP_FILE).exists()
    }

    /// How the run ended, for whoever asks.
    pub(crate) fn end(&mut self, phase: RunPhase) -> Result<(), TrainError> {
        let path = self.path.join(STATE_FILE);
        let _ = fs::remove_file(self.path.join(STOP_FILE));
        self.open().status.turn_to(phase).map_err(|e| TrainError::io(&path, e))
    }

    /// Whether so much can be written below the folder.
    pub(crate) fn check_space(&self, needed: u64) -> Result<(), TrainError> {
        match free_bytes(&self.path) {
            Some(free) if free < needed => Err(TrainError::NoSpace { path: self.path.clone(), needed, free }),
            _ => Ok(()),
        }
    }
}

impl Drop for RunFolder {
    /// A folder in which no run has begun goes as it came.
    fn drop(&mut self) {
        let is_empty = || fs::read_dir(&self.path).is_ok_and(|entries| entries.count() == 1);
        let untouched = self.open.is_none() && is_empty();
        if let Some(lock) = self.lock.take().filter(|_| untouched) {
            let _ = lock.remove();
            unmake(&self.made);
        }
    }
}

/// What the marker says to people.
const MARK: &str = "This folder is written by a run of plimsoll; without this file no run goes on in it.\n";

/// Marks a folder as a run's, and forgets a request to stop that was meant for the run before.
fn leave_mark(path: &Path, lock: &mut Lock, asked_before: Option<&File>) -> io::Result<()> {
    let stop = path.join(STOP_FILE);
    // Whoever asks from now on means this run, with a file of their own.
    if asked_before.is_some_and(|file| is_named(&stop, file)) {
        ops::remove_file(&stop)?;
    }
    lock.write(MARK)?;
    check_writable(path)
}

/// A folder that may not be written to, or a disk without any space, is found before there is anything to write.
fn check_writable(path: &Path) -> io::Result<()> {
    NewFolder::create(&path.join("probe")).map(drop)
}

/// Makes a folder and those above it, and adds what it made to a list.
fn make_with_parents(path: &Path, made: &mut Vec<PathBuf>) -> Result<(), TrainError> {
    let missing: Vec<&Path> = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
    for folder in missing.into_iter().rev() {
        match ops::create_folder(folder) {
            Ok(()) => made.push(folder.to_owned()),
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                unmake(made);
                return Err(TrainError::io(folder, error));
            }
        }
    }
    Ok(())
}

/// Removes folders as far as they are empty.
fn unmake(made: &[PathBuf]) {
    for folder in made.iter().rev() {
        let _ = fs::remove_dir(folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_to_stop_is_never_lost_however_early_it_comes() {
        for stale in [true, false].repeat(30) {
            let place = tempfile::tempdir().expect("a folder");
            let path = place.path().join("run");
            fs::create_dir(&path).expect("writable");
            fs::write(path.join(MARKER_FILE), MARK).expect("writable");
            if stale {
                fs::write(path.join(STOP_FILE), "").expect("writable");
            }
            std::thread::scope(|scope| {
                let asking = scope.spawn(|| while !request_stop(&path).expect("writable") {});
                let run = RunFolder::claim(&path).expect("free");
                asking.join().expect("no panic");
                assert!(run.is_asked_to_stop(), "a request of the run before: {stale}");
            });
            let run = RunFolder::claim(&path).expect("free");
            assert!(!run.is_asked_to_stop(), "what was asked of the run before is not asked of this one");
        }
    }
}
