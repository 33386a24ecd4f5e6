//! `metrics.jsonl`: what each update and each evaluation came to.

use std::path::Path;

use serde::{Deserialize, Deserializer};

use super::Follower;
use crate::ObserveError;

/// One update. What a line lacks is 0; what is not finite is NaN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StepPoint {
    pub step: u64,
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    #[serde(deserialize_with = "number")]
    pub lr: f64,
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    #[serde(deserialize_with = "number")]
    pub tokens_per_s: f64,
    #[serde(deserialize_with = "number")]
    pub step_ms: f64,
    #[serde(deserialize_with = "number")]
    pub data_wait_ms: f64,
    #[serde(deserialize_with = "number")]
    pub forward_backward_ms: f64,
    #[serde(deserialize_with = "number")]
    pub update_ms: f64,
    pub gpu_used_bytes: u64,
    pub host_rss_bytes: u64,
}

/// One evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvalPoint {
    pub step: u64,
    pub loss: f64,
}

/// JSON has no number that is not finite; the writer puts `null`.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[derive(Deserialize)]
struct EvalLine {
    step: u64,
    eval: EvalValues,
}

#[derive(Deserialize)]
struct EvalValues {
    #[serde(deserialize_with = "number")]
    loss: f64,
}

/// All points of a run so far, in order.
pub struct Metrics {
    follower: Follower,
    pub steps: Vec<StepPoint>,
    pub evals: Vec<EvalPoint>,
}

impl Metrics {
    /// Of the run in a folder; nothing is read yet.
    pub fn of(run: &Path) -> Self {
        Self { follower: Follower::new(&run.join("metrics.jsonl")), steps: Vec::new(), evals: Vec::new() }
    }

    /// Only the points near the end.
    pub fn last_of(run: &Path, bytes: u64) -> Result<Self, ObserveError> {
        let mut metrics = Self::of(run);
        metrics.follower.skip_to_last(bytes)?;
        metrics.update()?;
        Ok(metrics)
    }

    /// Adds what was written since the last call. A line that is neither an update nor an evaluation is passed over.
    pub fn update(&mut self) -> Result<(), ObserveError> {
        let Self { follower, steps, evals } = self;
        if follower.was_rewritten() {
            steps.clear();
            evals.clear();
        }
        follower.read(|line| {
            if line.contains("\"loss\"") && !line.contains("\"eval\"") {
                if let Ok(point) = serde_json::from_str::<StepPoint>(line) {
                    // A run that was resumed writes again what came after its checkpoint.
                    while steps.last().is_some_and(|last| last.step >= point.step) {
                        steps.pop();
                    }
                    steps.push(point);
                }
            } else if let Ok(EvalLine { step, eval }) = serde_json::from_str(line) {
                while evals.last().is_some_and(|last: &EvalPoint| last.step >= step) {
                    evals.pop();
                }
                evals.push(EvalPoint { step, loss: eval.loss });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;

    fn line(step: u64) -> String {
        format!(
            r#"{{"step":{step},"loss":{},"lr":1e-4,"grad_norm":1.25,"tokens":4096,"sequences":8,"tokens_per_s":1234.5,"step_ms":812.25,"data_wait_ms":0.5,"fill_rate":0.93,"gpu_used_bytes":0,"host_rss_bytes":123456789,"accuracy":0.5}}"#,
            10.0 / step as f64
        )
    }

    fn read(text: &str) -> Metrics {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("metrics.jsonl"), text).expect("writable");
        let mut metrics = Metrics::of(folder.path());
        metrics.update().expect("readable");
        metrics
    }

    #[test]
    fn updates_and_evaluations_are_told_apart() {
        let text = format!(
            "{}\n{}\n{{\"step\":2,\"eval\":{{\"loss\":4.5,\"tokens\":7}}}}\nnot JSON\n{}",
            line(1),
            r#"{"step":2,"loss":null,"lr":0.1}"#,
            &line(3)[..40]
        );
        let metrics = read(&text);
        assert_eq!(metrics.steps.len(), 2);
        assert_eq!((metrics.steps[0].loss, metrics.steps[0].host_rss_bytes), (10.0, 123_456_789));
        assert!(metrics.steps[1].loss.is_nan());
        assert_eq!(metrics.evals, [EvalPoint { step: 2, loss: 4.5 }]);
    }

    #[test]
    fn steps_that_were_done_again_count_once() {
        let text = [1, 2, 3, 4, 3, 4, 5].map(line).join("\n") + "\n";
        let steps: Vec<u64> = read(&text).steps.iter().map(|point| point.step).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_long_run_is_read_fast() {
        let text: String = (1..=100_000).map(|step| line(step) + "\n").collect();
        let began = Instant::now();
        assert_eq!(read(&text).steps.len(), 100_000);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
}
