//! What is shown of a run, kept up to date.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::load::{CardLoad, Load, LoadGauge};
use crate::ObserveError;
use crate::runs::{Follower, Metrics, RunStatus, run_status};

/// Lines of the log that are kept to be scrolled through.
const LOG_LINES_MAX: usize = 2000;
const LOG_BYTES: u64 = 256 << 10;

pub struct Watched {
    run: PathBuf,
    pub status: RunStatus,
    pub metrics: Metrics,
    pub plan: Option<Planned>,
    /// Of every schedule, the one that trains first.
    pub courses: Vec<Course>,
    pub load: Load,
    pub log: VecDeque<String>,
    log_file: Follower,
    gauge: LoadGauge,
}

/// The memory of the device that trains, as it was planned.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    pub device: String,
    /// Whether it is the card's memory or the host's.
    pub on_gpu: bool,
    pub budget_bytes: u64,
    pub planned_bytes: u64,
    /// The largest first.
    pub categories: Vec<(String, u64)>,
}

/// Planned bytes by category over the time of a schedule, as [`crate::picture::courses`] wrote them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Course {
    pub name: String,
    pub categories: BTreeMap<String, Vec<u64>>,
}

impl Watched {
    pub fn open(run: &Path) -> Result<Self, ObserveError> {
        let mut log_file = Follower::new(&run.join("log.txt"));
        log_file.skip_to_last(LOG_BYTES)?;
        Ok(Self {
            run: run.to_owned(),
            status: run_status(run)?,
            metrics: Metrics::of(run),
            plan: None,
            courses: Vec::new(),
            load: Load::default(),
            log: VecDeque::new(),
            log_file,
            gauge: LoadGauge::default(),
        })
    }

    /// `cards` is what those of this machine do now.
    pub fn refresh(&mut self, cards: Vec<CardLoad>) -> Result<(), ObserveError> {
        self.status = run_status(&self.run)?;
        self.metrics.update()?;
        self.load = self.gauge.read(Path::new("/"), cards);
        if self.plan.is_none() {
            self.plan = Planned::read(&self.run.join("plan.json"));
        }
        if self.courses.is_empty() {
            let text = fs::read(self.run.join("memory.json")).unwrap_or_default();
            self.courses = serde_json::from_slice(&text).unwrap_or_default();
        }
        let log = &mut self.log;
        self.log_file.read(|line| {
            if log.len() == LOG_LINES_MAX {
                log.pop_front();
            }
            log.push_back(line.to_owned());
        })
    }
}

impl Planned {
    fn read(path: &Path) -> Option<Self> {
        let report: Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let on_gpu = report["gpu"]["planned_bytes"].as_u64()? > 0;
        let memory = &report[if on_gpu { "gpu" } else { "host" }];
        let bytes = memory["categories"].as_object()?.iter();
        let mut categories: Vec<(String, u64)> =
            bytes.filter_map(|(name, bytes)| Some((name.clone(), bytes.as_u64()?))).filter(|(_, b)| *b > 0).collect();
        categories.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        Some(Self {
            device: report["device"].as_str()?.to_owned(),
            on_gpu,
            budget_bytes: memory["budget_bytes"].as_u64()?,
            planned_bytes: memory["planned_bytes"].as_u64()?,
            categories,
        })
    }
}

impl Course {
    pub fn moments(&self) -> usize {
        self.categories.values().map(Vec::len).max().unwrap_or(0)
    }

    /// The most that is in use at once.
    pub fn peak_bytes(&self) -> u64 {
        let at = |moment| self.categories.values().filter_map(|bytes| bytes.get(moment)).sum();
        (0..self.moments()).map(at).max().unwrap_or(0)
    }
}
