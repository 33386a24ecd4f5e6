//! From a configuration to a prepared training run, for any front end: the command line, tests, a dashboard.
//!
//! [`config::load`] resolves a run from a file and what overrides it; [`prepare`], [`plan`] and [`prepare_bench`] take it
//! from there. Progress goes to an [`Observer`], remarks come back as [`Note`]s, and whatever goes wrong is a [`Failure`]
//! with an exit code and hints. Nothing here prints.

mod artifact;
mod base;
mod budgets;
pub mod config;
mod data;
mod device;
mod diagnostics;
mod evaluate;
mod failure;
mod folder;
mod merge;
mod methods;
mod note;
mod observer;
mod other_trainers;
mod prepare;
mod prompts;
mod pytorch;
mod quickstart;
mod remedies;
mod samples;
mod schedule;
mod spec;
mod text;
mod text_stream;
mod units;
mod visible;
mod warning;

pub use artifact::{Artifact, trained_folder};
pub use base::Decided;
pub use budgets::Limit;
pub use data::{ExampleText, Inspected, Piece, RunData, Stored, inspect};
pub use diagnostics::requested_vocabulary;
pub use evaluate::{Evaluated, evaluate};
pub use failure::{Cause, Code, Failure, Memory, Place, Refusal};
pub use folder::{Continue, RUNS};
pub use merge::{Merged, merge};
pub use methods::{MethodTable, Way, methods};
pub use note::{DetectedFormat, Note};
pub use observer::{Event, Observer};
pub use other_trainers::{Offload, TrainerFigures, trainer_figures};
pub use plimsoll_cuda::{CardInventory, CardReading, Holder, Monitor, missing_libraries};
pub use plimsoll_models::preset_names;
pub use prepare::{
    Measured, Options, PlannedRun, PreparedBench, PreparedGeneration, PreparedRun, plan, prepare, prepare_bench,
    prepare_generation,
};
pub use prompts::{Prompt, read_prompts};
pub use pytorch::{ComparedBytes, ComparedRow, Comparison, ComparisonError, Spread, compare_with_pytorch};
pub use quickstart::quickstart;
pub use samples::{Sample, count_exact};
pub use text::{EncodedPrompt, TextModel, TextSession};
pub use text_stream::TextStream;
pub use units::{bytes, duration, seconds};
pub use visible::{visible, visible_lines};
pub use warning::Warning;
