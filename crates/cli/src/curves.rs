//! The curves of a run for other programs. A run does not end because they cannot be written.

use std::path::Path;

use plimsoll_observe::ObserveError;
use plimsoll_observe::tensorboard::EventWriter;
use plimsoll_observe::wandb::{Description, OfflineRun};
use plimsoll_run::config::Resolved;
use plimsoll_run::{Code, Failure};
use plimsoll_train::{Event, Outcome};
use serde_json::Value;

use crate::printer::StepLog;

pub struct Curves {
    tensorboard: Option<EventWriter>,
    wandb: Option<OfflineRun>,
}

impl Curves {
    pub fn open(run: &Path, resolved: &Resolved, log: &mut StepLog) -> Self {
        let tensorboard = kept(EventWriter::create(run, 0), "there are no curves for TensorBoard", log);
        let wandb = resolved.run.log.wandb.then(|| kept(offline(run, resolved), "there is no offline run of W&B", log));
        Self { tensorboard, wandb: wandb.flatten() }
    }

    pub fn record(&mut self, event: &Event, log: &mut StepLog) {
        if let Some(Err(error)) = self.tensorboard.as_mut().map(|curves| curves.record(event)) {
            log.warning(&format!("{error}; the curves for TensorBoard end here"));
            self.tensorboard = None;
        }
        if let Some(Err(error)) = self.wandb.as_mut().map(|run| run.record(event)) {
            log.warning(&format!("{error}; the offline run of W&B ends here"));
            self.wandb = None;
        }
    }

    pub fn finish(self, outcome: &Result<Outcome, Failure>, log: &mut StepLog) {
        let code = match outcome {
            Ok(outcome) if outcome.interrupted => Code::Interrupted as u8,
            Ok(_) => 0,
            Err(failure) => failure.code() as u8,
        };
        if let Some(Err(error)) = self.wandb.map(|run| run.finish(code)) {
            log.warning(&format!("{error}; the end of the offline run of W&B is missing"));
        }
    }
}

fn kept<T>(made: Result<T, ObserveError>, consequence: &str, log: &mut StepLog) -> Option<T> {
    made.inspect_err(|error| log.warning(&format!("{error}; {consequence}"))).ok()
}

fn offline(run: &Path, resolved: &Resolved) -> Result<OfflineRun, ObserveError> {
    let name = run.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let project = resolved.run.log.wandb_project.as_deref().unwrap_or("plimsoll");
    // Numbers, lists and words as JSON has them; the rest is YAML, as text.
    let value = |text: String| serde_json::from_str(&text).unwrap_or(Value::String(text));
    let config = resolved.origins().into_iter().map(|row| (row.path, value(row.value))).collect();
    OfflineRun::create(run, &Description { project, name: &name, config })
}
