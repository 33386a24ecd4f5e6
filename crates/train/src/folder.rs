//! The run folder: what was asked, what was planned, what happened.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use plimsoll_plan::Report;
use serde_json::json;

use crate::TrainError;
use crate::event::Event;
use crate::export::{remove_folder, write_whole};

pub struct RunFolder {
    path: PathBuf,
    metrics: File,
}

impl RunFolder {
    /// Makes a folder for a run; one that already holds a run is refused.
    pub fn create(path: &Path, run_yaml: &str, report: &Report) -> Result<Self, TrainError> {
        fs::create_dir_all(path).map_err(|e| TrainError::io(path, e))?;
        let metrics_path = path.join("metrics.jsonl");
        let metrics = File::create_new(&metrics_path).map_err(|e| TrainError::io(&metrics_path, e))?;
        write_whole(&path.join("run.yaml"), run_yaml.as_bytes())?;
        let plan = serde_json::to_string_pretty(report).expect("a report is plain data");
        write_whole(&path.join("plan.json"), plan.as_bytes())?;
        Ok(Self { path: path.to_owned(), metrics })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `log.txt`, for whoever words what happened.
    pub fn open_log(&self) -> Result<File, TrainError> {
        let path = self.path.join("log.txt");
        File::create(&path).map_err(|e| TrainError::io(&path, e))
    }

    /// A folder of that name, or the first numbered one that does not hold a run yet.
    pub fn free_name(runs: &Path, name: &str) -> PathBuf {
        let candidates = std::iter::once(runs.join(name)).chain((2..).map(|n| runs.join(format!("{name}-{n}"))));
        candidates.into_iter().find(|p| !p.join("metrics.jsonl").exists()).expect("numbers do not end")
    }

    /// Appends a line to `metrics.jsonl`, on disk before the next step begins.
    pub(crate) fn record(&mut self, event: &Event) -> Result<(), TrainError> {
        let line = match event {
            Event::Step(step) => json!(step),
            Event::Eval { step, eval } => json!({"step": step, "eval": eval}),
            Event::MicroBatch { .. } | Event::Saved { .. } => return Ok(()),
        };
        let path = self.path.join("metrics.jsonl");
        writeln!(self.metrics, "{line}").map_err(|e| TrainError::io(&path, e))
    }

    pub(crate) fn checkpoint(&self, step: u64) -> PathBuf {
        self.path.join("checkpoints").join(format!("step-{step}"))
    }

    /// Removes all but the newest `keep` checkpoints and the best one.
    pub(crate) fn prune(&self, keep: usize, best: Option<u64>) -> Result<(), TrainError> {
        let parent = self.path.join("checkpoints");
        let Ok(entries) = fs::read_dir(&parent) else { return Ok(()) };
        let number = |p: &Path| p.file_name()?.to_str()?.strip_prefix("step-")?.parse::<u64>().ok();
        let mut found: Vec<(u64, PathBuf)> =
            entries.filter_map(Result::ok).map(|e| e.path()).filter_map(|p| Some((number(&p)?, p))).collect();
        found.sort();
        let surplus = found.len().saturating_sub(keep.max(1));
        for (_, path) in found[..surplus].iter().filter(|(step, _)| Some(*step) != best) {
            remove_folder(path)?;
        }
        Ok(())
    }
}
