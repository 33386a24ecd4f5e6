//! How far something is: a bar on a terminal, a line now and then elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use plimsoll_run::duration;

use super::Printer;

/// Where no bar can be drawn, a line at most this often.
const LINE_EVERY: Duration = Duration::from_secs(20);

pub struct Progress {
    printer: Printer,
    what: &'static str,
    total: u64,
    started: Instant,
    last_line: Instant,
    bar: Option<ProgressBar>,
    /// How fast, in words; may be empty.
    rate: String,
}

impl Progress {
    pub(super) fn new(printer: Printer, what: &'static str, total: u64) -> Self {
        let bar = (printer.terminal && !printer.quiet).then(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let template = "{prefix} {wide_bar} {pos}/{len}{msg} · {elapsed} · {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("━╸ "));
            }
            bar.set_prefix(what);
            bar
        });
        let now = Instant::now();
        Self { printer, what, total, started: now, last_line: now, bar, rate: String::new() }
    }

    /// `done` of the total are done.
    pub fn advance_to(&mut self, done: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            self.printer.note(self.status(done, self.started.elapsed()));
        }
    }

    /// How fast it goes, to stand beside how far it is.
    pub fn rate(&mut self, text: &str) {
        text.clone_into(&mut self.rate);
        if let Some(bar) = &self.bar {
            bar.set_message(format!(" · {text}"));
        }
    }

    /// A line above the bar.
    pub fn line(&mut self, text: &str) {
        self.last_line = Instant::now();
        match &self.bar {
            Some(bar) => bar.suspend(|| self.printer.note(text)),
            None => self.printer.note(text),
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn status(&self, done: u64, elapsed: Duration) -> String {
        let share = done as f64 / self.total.max(1) as f64;
        let left = if done == 0 {
            String::new()
        } else {
            let left = elapsed.mul_f64((1.0 / share - 1.0).max(0.0));
            format!(", {} left", duration(left))
        };
        let percent = share * 100.0;
        let rate = if self.rate.is_empty() { String::new() } else { format!(", {}", self.rate) };
        format!("{} {done}/{} ({percent:.0} %){rate}{left}", self.what, self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_line_without_a_terminal() {
        let printer = Printer { quiet: true, json: false, terminal: false, colour: false };
        let mut progress = Progress::new(printer, "training", 200);
        assert_eq!(progress.status(0, Duration::ZERO), "training 0/200 (0 %)");
        let elapsed = Duration::from_secs(30);
        assert_eq!(progress.status(50, elapsed), "training 50/200 (25 %), 1 min 30 s left");
        progress.rate("3 rows/s");
        assert_eq!(progress.status(50, elapsed), "training 50/200 (25 %), 3 rows/s, 1 min 30 s left");
    }
}
