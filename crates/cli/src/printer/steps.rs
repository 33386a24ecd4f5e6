//! One aligned line per update.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use plimsoll_run::{ExampleText, bytes, duration};
use plimsoll_train::Metrics;

use super::example::render;
use super::{Printer, Progress};

/// Of a metric's column, unless its name is longer.
const METRIC_WIDTH: usize = 8;

/// What one update did.
#[derive(Clone, Debug)]
pub struct StepLine {
    pub step: u64,
    pub loss: f64,
    pub metrics: Metrics,
    pub lr: f64,
    pub grad_norm: f64,
    pub tokens_per_s: f64,
    pub step_ms: f64,
    /// In use on the device that trains.
    pub used_bytes: u64,
}

/// What an evaluation found.
#[derive(Clone, Debug)]
pub struct EvalLine {
    pub step: u64,
    pub loss: f64,
    pub metrics: Metrics,
    pub took: Duration,
}

/// The lines of a run, with a bar below them on a terminal. The run's log file gets the same lines, even when quiet.
pub struct StepLog {
    printer: Printer,
    progress: Progress,
    /// `None` once a line could not be written; a run does not fail for its log.
    file: Option<File>,
    step_width: usize,
    headed: bool,
}

impl StepLog {
    pub(super) fn new(printer: Printer, total: u64, file: File) -> Self {
        Self {
            printer,
            file: Some(file),
            progress: printer.progress("training", total),
            step_width: total.to_string().len().max("step".len()),
            headed: false,
        }
    }

    pub fn step(&mut self, line: &StepLine) {
        if !self.headed {
            self.headed = true;
            self.note(&head(self.step_width, &line.metrics));
        }
        self.note(&step(line, self.step_width));
        self.progress.advance_to(line.step);
    }

    pub fn eval(&mut self, line: &EvalLine) {
        self.note(&eval(line, self.step_width));
    }

    /// Any other text, above the bar.
    pub fn note(&mut self, text: &str) {
        self.progress.line(text);
        self.record(text);
    }

    /// Something the user should know, even when quiet.
    pub fn warning(&mut self, text: &str) {
        self.printer.warning(text);
        self.record(&format!("warning: {text}"));
    }

    /// An example, in colour where there is colour.
    pub fn example(&mut self, example: &ExampleText) {
        self.progress.line(&render(example, self.printer.colour));
        self.record(&render(example, false));
    }

    /// A result: to stdout.
    pub fn data(&mut self, text: &str) {
        self.printer.data(text);
        self.record(text);
    }

    /// Only for the file.
    pub fn record(&mut self, text: &str) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = writeln!(file, "{text}") {
            self.printer.warning(format!("cannot write log.txt any further: {error}"));
            self.file = None;
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        self.progress.finish();
    }
}

fn head(width: usize, metrics: &Metrics) -> String {
    let names: String = metrics.iter().map(|(name, _)| format!("  {name:>METRIC_WIDTH$}")).collect();
    format!(
        "{:>width$}  {:>9}{names}  {:>9}  {:>9}  {:>9}  {:>9}  {:>11}",
        "step", "loss", "lr", "grad norm", "tokens/s", "ms/step", "memory"
    )
}

/// The columns of the task's own metrics, below their names.
fn values(metrics: &Metrics) -> String {
    let column = |(name, value): (&str, f64)| format!("  {value:>width$.4}", width = name.len().max(METRIC_WIDTH));
    metrics.iter().map(column).collect()
}

fn step(line: &StepLine, width: usize) -> String {
    let values = values(&line.metrics);
    format!(
        "{:>width$}  {:>9.5}{values}  {:>9.3e}  {:>9.4}  {:>9.0}  {:>9.1}  {:>11}",
        line.step,
        line.loss,
        line.lr,
        line.grad_norm,
        line.tokens_per_s,
        line.step_ms,
        bytes(line.used_bytes)
    )
}

fn eval(line: &EvalLine, width: usize) -> String {
    let values = values(&line.metrics);
    format!("{:>width$}  {:>9.5}{values}  evaluation, {}", line.step, line.loss, duration(line.took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_line_up() {
        let update = StepLine {
            step: 12,
            loss: 8.317_766,
            metrics: Metrics::default(),
            lr: 1e-4,
            grad_norm: 1.25,
            tokens_per_s: 11_930.4,
            step_ms: 171.66,
            used_bytes: 410 << 20,
        };
        let evaluation =
            EvalLine { step: 12, loss: 7.5, metrics: Metrics::default(), took: Duration::from_millis(1500) };
        let lines = [head(4, &update.metrics), step(&update, 4), eval(&evaluation, 4)].join("\n");
        assert_eq!(
            lines,
            "step       loss         lr  grad norm   tokens/s    ms/step       memory\n\
             \x20 12    8.31777   1.000e-4     1.2500      11930      171.7    410.0 MiB\n\
             \x20 12    7.50000  evaluation, 1.5 s"
        );
        let metrics = Metrics::new([("accuracy", 0.6845), ("margin", -0.25), ("bits_per_byte", 1.5)]);
        let update = StepLine { metrics: metrics.clone(), ..update };
        let evaluation = EvalLine { metrics: metrics.clone(), ..evaluation };
        let lines = [head(4, &metrics), step(&update, 4), eval(&evaluation, 4)].join("\n");
        assert_eq!(
            lines,
            "step       loss  accuracy    margin  bits_per_byte         lr  grad norm   tokens/s    ms/step       memory\n\
             \x20 12    8.31777    0.6845   -0.2500         1.5000   1.000e-4     1.2500      11930      171.7    410.0 MiB\n\
             \x20 12    7.50000    0.6845   -0.2500         1.5000  evaluation, 1.5 s"
        );
    }
}
