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

/// Positions of a bar.
const BAR_LENGTH: f64 = 10_000.0;

impl Progress {
    pub(super) fn new(printer: Printer, what: &'static str, total: u64) -> Self {
        let bar = (printer.is_terminal() && !printer.quiet).then(|| {
            let bar = ProgressBar::with_draw_target(Some(BAR_LENGTH as u64), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {msg} · {elapsed}") {
                bar.set_style(style.progress_chars("━╸ "));
            }
            bar.set_prefix(printer.language.label(what));
            // The clock goes on where nothing else does for a while.
            bar.enable_steady_tick(Duration::from_secs(1));
            bar
        });
        let now = Instant::now();
        Self { printer, what, total, started: now, last_line: now, bar, rate: String::new() }
    }

    /// `done` of the total are done.
    pub fn advance_to(&mut self, done: u64) {
        let done = done as f64;
        self.advance(done, left(done / self.total.max(1) as f64, self.started.elapsed()));
    }

    /// `done` of the total are done, perhaps with a part of the next one, and the rest will take so long.
    pub fn advance(&mut self, done: f64, left: Option<Duration>) {
        if let Some(bar) = &self.bar {
            bar.set_position((done / self.total.max(1) as f64 * BAR_LENGTH) as u64);
            bar.set_message(self.status(done, left));
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            let what = self.printer.language.label(self.what);
            self.printer.remarked(&format!("{what} {}", self.status(done, left)));
        }
    }

    /// How fast it goes, to stand beside how far it is.
    pub fn rate(&mut self, text: &str) {
        text.clone_into(&mut self.rate);
    }

    /// Something to be printed above the bar.
    pub fn above(&mut self, print: impl FnOnce(Printer)) {
        self.last_line = Instant::now();
        match &self.bar {
            Some(bar) => bar.suspend(|| print(self.printer)),
            None => print(self.printer),
        }
    }

    /// Takes the bar away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn status(&self, done: f64, left: Option<Duration>) -> String {
        let percent = 100.0 * done / self.total.max(1) as f64;
        let rate = if self.rate.is_empty() { String::new() } else { format!(", {}", self.rate) };
        let left = left.map_or_else(String::new, |left| format!(", {} left", duration(left)));
        let status = format!("{}/{} ({percent:.0} %){rate}{left}", done.floor(), self.total);
        self.printer.language.say(&status).into_owned()
    }
}

/// How long the rest takes if it goes as it went.
fn left(share: f64, elapsed: Duration) -> Option<Duration> {
    (share > 0.0).then(|| elapsed.mul_f64((1.0 / share - 1.0).max(0.0)))
}

#[cfg(test)]
mod tests {
    use plimsoll_speech::Language;

    use super::*;

    #[test]
    fn status_line_without_a_terminal() {
        let printer = Printer {
            quiet: true,
            json: false,
            width: None,
            data_width: None,
            colour: false,
            language: Language::English,
        };
        let mut progress = Progress::new(printer, "training", 200);
        assert_eq!(progress.status(0.0, None), "0/200 (0 %)");
        let remaining = left(0.25, Duration::from_secs(30));
        assert_eq!(progress.status(50.0, remaining), "50/200 (25 %), 1 min 30 s left");
        assert_eq!(progress.status(51.9, None), "51/200 (26 %)");
        progress.rate("3 rows/s");
        assert_eq!(progress.status(50.0, remaining), "50/200 (25 %), 3 rows/s, 1 min 30 s left");
    }
}
