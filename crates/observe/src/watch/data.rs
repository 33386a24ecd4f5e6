//! What is shown of a run, kept up to date.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

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
    pub log: VecDeque<String>,
    log_file: Follower,
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

impl Watched {
    pub fn open(run: &Path) -> Result<Self, ObserveError> {
        let mut log_file = Follower::new(&run.join("log.txt"));
        log_file.skip_to_last(LOG_BYTES)?;
        Ok(Self {
            run: run.to_owned(),
            status: run_status(run)?,
            metrics: Metrics::of(run),
            plan: None,
            log: VecDeque::new(),
            log_file,
        })
    }

    pub fn refresh(&mut self) -> Result<(), ObserveError> {
        self.status = run_status(&self.run)?;
        self.metrics.update()?;
        if self.plan.is_none() {
            self.plan = Planned::read(&self.run.join("plan.json"));
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
