//! TensorBoard's event files, written without TensorFlow: records with checksums around hand-encoded messages.

mod message;
mod record;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_train::Event;

use crate::ObserveError;
use message::{session_start, summary, version};
use record::framed;

const GIB: f64 = (1u64 << 30) as f64;

/// One event file of a run. What is written is on its way to the disk at once, so that a reader beside it keeps up.
pub struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Starts a file in `folder`. If the run goes on behind `last_step`, curves of a former file are cut off there.
    pub fn create(folder: &Path, last_step: u64) -> Result<Self, ObserveError> {
        let now = unix_seconds();
        let name = format!("events.out.tfevents.{:010}.{}.plimsoll", now as u64, std::process::id());
        let path = free_name(&folder.join(name));
        fs::create_dir_all(folder).map_err(|e| ObserveError::io(folder, e))?;
        let file = File::create_new(&path).map_err(|e| ObserveError::io(&path, e))?;
        let mut writer = Self { path, file };
        writer.write(&version(now))?;
        if last_step > 0 {
            writer.write(&session_start(now, last_step + 1))?;
        }
        Ok(writer)
    }

    /// Curves of an update or of an evaluation. Other events have none.
    pub fn record(&mut self, event: &Event) -> Result<(), ObserveError> {
        match event {
            Event::Step(step) => {
                let mut scalars = vec![
                    ("train/loss".to_owned(), step.loss),
                    ("train/lr".to_owned(), step.lr),
                    ("train/grad_norm".to_owned(), step.grad_norm),
                    ("speed/tokens_per_s".to_owned(), step.tokens_per_s),
                    ("speed/step_ms".to_owned(), step.step_ms),
                    ("speed/data_wait_ms".to_owned(), step.data_wait_ms),
                    ("speed/forward_backward_ms".to_owned(), step.forward_backward_ms),
                    ("speed/update_ms".to_owned(), step.update_ms),
                    ("memory/host_gib".to_owned(), step.host_rss_bytes as f64 / GIB),
                ];
                if step.gpu_used_bytes > 0 {
                    scalars.push(("memory/gpu_gib".to_owned(), step.gpu_used_bytes as f64 / GIB));
                }
                scalars.extend(step.metrics.iter().map(|(name, value)| (format!("train/{name}"), value)));
                self.scalars(step.step, &scalars)
            }
            Event::Eval { step, eval } => {
                let mut scalars = vec![("eval/loss".to_owned(), eval.loss)];
                scalars.extend(eval.metrics.iter().map(|(name, value)| (format!("eval/{name}"), value)));
                self.scalars(*step, &scalars)
            }
            _ => Ok(()),
        }
    }

    /// Points of several curves at one step.
    pub fn scalars(&mut self, step: u64, scalars: &[(String, f64)]) -> Result<(), ObserveError> {
        self.write(&summary(unix_seconds(), step, scalars))
    }

    fn write(&mut self, message: &[u8]) -> Result<(), ObserveError> {
        // One write for a record, so that a reader finds it whole.
        self.file.write_all(&framed(message)).map_err(|e| ObserveError::io(&self.path, e))
    }
}

/// The name itself, or with a number if there is such a file already.
fn free_name(path: &Path) -> PathBuf {
    let numbered = (1..).map(|n| PathBuf::from(format!("{}.{n}", path.display())));
    let mut names = std::iter::once(path.to_owned()).chain(numbered);
    names.find(|name| !name.exists()).expect("numbers do not end")
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}
