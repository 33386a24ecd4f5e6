//! What the page can have done. Who starts a dashboard knows how to plan and to train; here it is only passed on.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Plans, starts and stops runs for the page. Each is given what was asked for as it came: it decides what may be.
pub trait Launcher: Send + Sync {
    /// What there is to choose from.
    fn choices(&self) -> Choices;

    /// What a run would take, and what else could be done.
    fn plan(&self, draft: &Draft) -> Result<Planned, Refused>;

    /// Starts a run that goes on without the dashboard, and returns its name.
    fn start(&self, draft: &Draft) -> Result<String, Refused>;

    /// Asks the run in a folder to save and stop.
    fn stop(&self, run: &Path) -> Result<(), Refused>;

    /// Goes on with the run in a folder.
    fn resume(&self, run: &Path) -> Result<(), Refused>;

    /// What became of the runs that were started from here.
    fn launched(&self) -> Vec<Launched>;
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Choices {
    /// What a run can begin with: each has its own word, by which a draft names it.
    pub models: Vec<Model>,
    /// Paths of data files.
    pub data: Vec<String>,
    /// Paths of folders with a tokenizer.
    pub tokenizers: Vec<String>,
    pub tasks: Vec<String>,
    /// Bytes of the cards here, largest first, and of the host.
    pub gpus: Vec<Card>,
    pub host_bytes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Model {
    pub word: String,
    pub kind: ModelKind,
    pub name: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Model and data that come with the program.
    #[default]
    Quickstart,
    /// A run file.
    File,
    /// A Hugging Face folder.
    Folder,
    /// A known shape, trained from random weights.
    Preset,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Card {
    pub name: String,
    pub bytes: u64,
}

/// What somebody has filled in. What is left out stays as the model's run has it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Draft {
    pub name: String,
    /// The word of a [`Model`].
    pub model: String,
    pub data: Option<String>,
    pub tokenizer: Option<String>,
    pub task: Option<String>,
    /// `lora` or `full`.
    pub method: Option<String>,
    /// `cpu`; else what `auto` finds.
    pub device: Option<String>,
    pub gpu_mib: Option<u64>,
    pub host_mib: Option<u64>,
    /// `fastest` or `lowest`.
    pub goal: Option<String>,
    pub sequences: Option<u64>,
    pub max_length: Option<u64>,
    pub steps: Option<u64>,
    pub lr: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Planned {
    pub fits: bool,
    /// As `plimsoll plan --json` prints it.
    pub report: Value,
    /// What the planner says besides: why nothing fits, and what to do.
    pub said: String,
    /// What does the same in a shell.
    pub command: String,
}

/// Why something is not done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Refused {
    #[serde(skip)]
    pub status: u16,
    pub message: String,
}

impl Refused {
    /// What was asked for cannot be.
    pub fn wrong(message: impl Into<String>) -> Self {
        Self { status: 422, message: message.into() }
    }

    /// It could be, but not as things are.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self { status: 409, message: message.into() }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Self { status: 500, message: message.into() }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Launched {
    pub name: String,
    /// `None` while it goes on.
    pub code: Option<i32>,
    /// Its last words, if it failed.
    pub said: String,
}
