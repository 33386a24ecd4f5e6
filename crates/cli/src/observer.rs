//! Shows how far the preparation of a run is.

use std::time::Instant;

use plimsoll_data::Progress;
use plimsoll_run::{Event, Observer, bytes, duration};

use crate::printer::{self, Printer};
use crate::tables;

/// Shows how far tokenising is, in MB of the files, then the plan, then how far the weights are.
pub struct Preparing<'a> {
    printer: &'a Printer,
    /// Of the run, those that came with the plan.
    notes_shown: usize,
    weights: Option<(Instant, Option<printer::Progress>)>,
    bar: Option<printer::Progress>,
    began: Instant,
    last: Progress,
}

/// Nothing is shown of what takes less.
const SHOWN_AFTER_S: f64 = 2.0;

const MB: u64 = 1_000_000;

impl<'a> Preparing<'a> {
    pub fn new(printer: &'a Printer) -> Self {
        Self { printer, notes_shown: 0, weights: None, bar: None, began: Instant::now(), last: Progress::default() }
    }

    pub fn notes_shown(&self) -> usize {
        self.notes_shown
    }

    fn weights(&mut self, done_bytes: u64, total_bytes: u64) {
        let printer = self.printer;
        let (began, bar) = self.weights.get_or_insert_with(|| (Instant::now(), None));
        if bar.is_none() && began.elapsed().as_secs_f64() < SHOWN_AFTER_S {
            return;
        }
        let bar = bar.get_or_insert_with(|| printer.progress("MB of weights", total_bytes.div_ceil(MB)));
        bar.advance_to(done_bytes / MB);
        if done_bytes >= total_bytes {
            bar.finish();
        }
    }

    fn advance(&mut self, progress: Progress) {
        self.last = progress;
        if self.began.elapsed().as_secs_f64() >= SHOWN_AFTER_S {
            let rates = self.rates();
            let total = progress.bytes_total.div_ceil(MB);
            let bar = self.bar.get_or_insert_with(|| self.printer.progress("MB tokenised", total));
            bar.rate(&rates);
            bar.advance_to(progress.bytes_read / MB);
        }
    }

    fn rates(&self) -> String {
        let seconds = self.began.elapsed().as_secs_f64().max(1e-9);
        let Progress { rows, bytes_read, .. } = self.last;
        format!("{:.0} rows/s, {:.1} MB/s", rows as f64 / seconds, bytes_read as f64 / MB as f64 / seconds)
    }

    fn finish(&mut self) {
        let Some(mut bar) = self.bar.take() else { return };
        bar.finish();
        let Progress { rows, bytes_read, .. } = self.last;
        self.printer.note(format!(
            "tokenised {rows} rows, {:.1} MB, in {} ({})",
            bytes_read as f64 / MB as f64,
            duration(self.began.elapsed()),
            self.rates()
        ));
    }
}

impl Observer for Preparing<'_> {
    fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::DatasetStarted => {
                self.began = Instant::now();
                self.last = Progress::default();
            }
            Event::Tokenising(progress) => self.advance(progress),
            Event::DatasetFinished => self.finish(),
            Event::Planned { report, notes } => {
                notes.iter().for_each(|note| self.printer.remark(note));
                self.notes_shown = notes.len();
                self.printer.note_tables(&tables::plan(report));
            }
            Event::Weights { done_bytes, total_bytes } => self.weights(done_bytes, total_bytes),
            Event::CacheSwept { folder, files, bytes: freed } => self.printer.note(format!(
                "removed {files} token caches ({}) from {}: not used for 30 days",
                bytes(freed),
                folder.display()
            )),
        }
    }
}
