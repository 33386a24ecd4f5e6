//! One aligned line per update.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use plimsoll_train::PairMetrics;

use super::{ExampleText, Printer, Progress, bytes, duration};

/// What one update did.
#[derive(Clone, Copy, Debug)]
pub struct StepLine {
    pub step: u64,
    pub loss: f64,
    pub pairs: Option<PairMetrics>,
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
    pub pairs: Option<PairMetrics>,
    pub took: Duration,
}

/// The lines of a run, with a bar below them on a terminal. The run's log file gets the same lines, even when quiet.
pub struct StepLog {
    printer: Printer,
    progress: Progress,
    /// `None` once a line could not be written; a run is not given up for its log.
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
            self.note(&head(self.step_width, line.pairs.is_some()));
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

    /// An example, in colour where there is colour.
    pub fn example(&mut self, example: &ExampleText) {
        self.progress.line(&example.render(self.printer.colour));
        self.record(&example.render(false));
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
            self.printer.warning(format!("log.txt ends here: {error}"));
            self.file = None;
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        self.progress.finish();
    }
}

fn head(width: usize, pairs: bool) -> String {
    let counted = if pairs { format!("  {:>8}  {:>8}", "accuracy", "margin") } else { String::new() };
    format!(
        "{:>width$}  {:>9}{counted}  {:>9}  {:>9}  {:>9}  {:>9}  {:>11}",
        "step", "loss", "lr", "grad norm", "tokens/s", "ms/step", "memory"
    )
}

/// The columns of a task with pairs.
fn counted(pairs: Option<PairMetrics>) -> String {
    pairs.map_or_else(String::new, |p| format!("  {:>6.1} %  {:>8.4}", 100.0 * p.accuracy, p.margin))
}

fn step(line: &StepLine, width: usize) -> String {
    let counted = counted(line.pairs);
    format!(
        "{:>width$}  {:>9.5}{counted}  {:>9.3e}  {:>9.4}  {:>9.0}  {:>9.1}  {:>11}",
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
    let counted = counted(line.pairs);
    format!("{:>width$}  {:>9.5}{counted}  evaluation, {}", line.step, line.loss, duration(line.took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_line_up() {
        let update = StepLine {
            step: 12,
            loss: 8.317_766,
            pairs: None,
            lr: 1e-4,
            grad_norm: 1.25,
            tokens_per_s: 11_930.4,
            step_ms: 171.66,
            used_bytes: 410 << 20,
        };
        let evaluation = EvalLine { step: 12, loss: 7.5, pairs: None, took: Duration::from_millis(1500) };
        let lines = [head(4, false), step(&update, 4), eval(&evaluation, 4)].join("\n");
        assert_eq!(
            lines,
            "step       loss         lr  grad norm   tokens/s    ms/step       memory\n\
             \x20 12    8.31777   1.000e-4     1.2500      11930      171.7    410.0 MiB\n\
             \x20 12    7.50000  evaluation, 1.5 s"
        );
        let pairs = Some(PairMetrics { accuracy: 0.6845, margin: -0.25 });
        let (update, evaluation) = (StepLine { pairs, ..update }, EvalLine { pairs, ..evaluation });
        let lines = [head(4, true), step(&update, 4), eval(&evaluation, 4)].join("\n");
        assert_eq!(
            lines,
            "step       loss  accuracy    margin         lr  grad norm   tokens/s    ms/step       memory\n\
             \x20 12    8.31777    68.5 %   -0.2500   1.000e-4     1.2500      11930      171.7    410.0 MiB\n\
             \x20 12    7.50000    68.5 %   -0.2500  evaluation, 1.5 s"
        );
    }
}
