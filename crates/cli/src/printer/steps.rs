//! One aligned line per update.

use std::time::Duration;

use super::{Printer, Progress, bytes, duration};

/// What one update did.
#[derive(Clone, Copy, Debug)]
pub struct StepLine {
    pub step: u64,
    pub loss: f64,
    pub lr: f64,
    pub grad_norm: f64,
    pub tokens_per_s: f64,
    pub step_ms: f64,
    /// What the run uses of the memory that is its narrowest.
    pub used_bytes: u64,
}

/// What an evaluation found.
#[derive(Clone, Copy, Debug)]
pub struct EvalLine {
    pub step: u64,
    pub loss: f64,
    pub took: Duration,
}

/// The lines of a run, with a bar below them on a terminal.
pub struct StepLog {
    progress: Progress,
    step_width: usize,
    headed: bool,
}

impl StepLog {
    pub(super) fn new(printer: Printer, total: u64) -> Self {
        Self {
            progress: printer.progress("training", total),
            step_width: total.to_string().len().max("step".len()),
            headed: false,
        }
    }

    pub fn step(&mut self, line: &StepLine) {
        if !self.headed {
            self.headed = true;
            self.progress.line(&head(self.step_width));
        }
        self.progress.line(&step(line, self.step_width));
        self.progress.advance_to(line.step);
    }

    pub fn eval(&mut self, line: &EvalLine) {
        self.progress.line(&eval(line, self.step_width));
    }

    /// Any other line, above the bar.
    pub fn note(&mut self, text: &str) {
        self.progress.line(text);
    }

    pub fn finish(self) {
        self.progress.finish();
    }
}

fn head(width: usize) -> String {
    format!(
        "{:>width$}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {:>11}",
        "step", "loss", "lr", "grad norm", "tokens/s", "ms/step", "memory"
    )
}

fn step(line: &StepLine, width: usize) -> String {
    format!(
        "{:>width$}  {:>9.5}  {:>9.3e}  {:>9.4}  {:>9.0}  {:>9.1}  {:>11}",
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
    format!("{:>width$}  {:>9.5}  evaluation, {}", line.step, line.loss, duration(line.took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_line_up() {
        let update = StepLine {
            step: 12,
            loss: 8.317_766,
            lr: 1e-4,
            grad_norm: 1.25,
            tokens_per_s: 11_930.4,
            step_ms: 171.66,
            used_bytes: 410 << 20,
        };
        let evaluation = EvalLine { step: 12, loss: 7.5, took: Duration::from_millis(1500) };
        let lines = [head(4), step(&update, 4), eval(&evaluation, 4)].join("\n");
        assert_eq!(
            lines,
            "step       loss         lr  grad norm   tokens/s    ms/step       memory\n\
             \x20 12    8.31777   1.000e-4     1.2500      11930      171.7    410.0 MiB\n\
             \x20 12    7.50000  evaluation, 1.5 s"
        );
    }
}
