//! Keeping a dataset as the run says: in memory, in a cache, or streamed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::{
    DataError, Dataset, Limits, Mode, Options, Progress, Source, Swept, Tokenizer, Weighted, choose, sweep_cache,
};

use super::Surroundings;
use crate::config::{Budget, DataMode, Length, SourceEntry};
use crate::printer::{Printer, bytes, duration};

/// The folder beside the run in which tokenised data is kept.
const CACHE_FOLDER: &str = "token-cache";

/// What a stream may hold of tokenised data where nobody says.
const STREAM_BUFFER_BYTES: u64 = 96 << 20;

pub struct Keeper<'a> {
    pub here: &'a Surroundings<'a>,
    pub tokenizer: &'a Arc<Tokenizer>,
}

/// How a dataset is kept, and in words why.
pub struct Kept {
    pub mode: Mode,
    pub told: String,
}

/// Without weights the entries are one source, so that each file counts once.
pub fn sources(entries: &[SourceEntry]) -> Result<Vec<Weighted>, DataError> {
    if entries.iter().all(|entry| entry.weight.is_none()) {
        let paths: Vec<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
        return Ok(vec![Weighted::alone(Source::open(&paths)?)]);
    }
    let weighted = |entry: &SourceEntry| Ok(Weighted { source: Source::open(&[&entry.path])?, weight: entry.weight });
    entries.iter().map(weighted).collect()
}

/// The same sources for a pass over all rows. They stay apart, so that the rows held out are those training leaves out.
pub fn without_weights(sources: Vec<Weighted>) -> Vec<Weighted> {
    sources.into_iter().map(|weighted| Weighted::alone(weighted.source)).collect()
}

impl Keeper<'_> {
    /// `timed`: whether the run's length may depend on how many groups there are.
    pub fn keep(&self, sources: Vec<Weighted>, options: &Options, timed: bool) -> Result<(Dataset, Kept), DataError> {
        let run = &self.here.resolved.run;
        let folder = self.folder();
        let limits = Limits { host_bytes: self.here.host_bytes, folder: &folder };
        let asked = "data.mode says so".to_owned();
        let (sources, mode, why) = match run.data.mode {
            DataMode::Auto => {
                let (sources, choice) = choose(sources, self.tokenizer, options, &limits)?;
                (sources, choice.mode, choice.why)
            }
            DataMode::Memory => (sources, Mode::Memory, asked),
            DataMode::Cached => (sources, Mode::Cached, asked),
            DataMode::Streaming => (sources, Mode::Streamed, asked),
        };
        let mut shown = Tokenising::new(self.here.printer);
        let mut observe = |progress: &Progress| shown.tell(progress);
        let dataset = match mode {
            Mode::Memory => Dataset::in_memory(sources, self.tokenizer, options, &mut observe)?,
            Mode::Cached => {
                let cached = Dataset::cached(sources, self.tokenizer, options, &folder, &mut observe)?;
                self.sweep(&folder);
                cached
            }
            Mode::Streamed => {
                let buffer = match run.data.buffer {
                    // The order depends on it, so it must not depend on what happens to be free.
                    Budget::Auto => STREAM_BUFFER_BYTES,
                    given => given.bytes_of(self.here.host_bytes),
                };
                let stream = Dataset::streamed(sources, self.tokenizer.clone(), options, buffer)?;
                // Only epochs need to know how many groups there are.
                let by_epochs = timed && matches!(run.schedule.length, Length::Epochs(_));
                if by_epochs { stream.counted(&mut observe)? } else { stream }
            }
        };
        shown.finish();
        let place = if mode == Mode::Cached { format!(" in {}", folder.display()) } else { String::new() };
        Ok((dataset, Kept { mode, told: format!("data: {mode}{place}, because {why}") }))
    }

    fn sweep(&self, folder: &Path) {
        let Swept { files, bytes: freed } = sweep_cache(folder);
        if files > 0 {
            let (folder, freed) = (folder.display(), bytes(freed));
            self.here.printer.note(format!("removed {files} caches of {freed} from {folder}, unused for 30 days"));
        }
    }

    fn folder(&self) -> PathBuf {
        match &self.here.resolved.run.data.cache {
            Some(folder) => PathBuf::from(folder),
            None => self.here.out.parent().unwrap_or(Path::new("")).join(CACHE_FOLDER),
        }
    }
}

/// Shows how far tokenising is, in MB of the files.
struct Tokenising<'a> {
    printer: &'a Printer,
    bar: Option<crate::printer::Progress>,
    began: Instant,
    last: Progress,
}

/// What is done sooner is not worth a line.
const WORTH_A_LINE_S: f64 = 2.0;

const MB: u64 = 1_000_000;

impl<'a> Tokenising<'a> {
    fn new(printer: &'a Printer) -> Self {
        Self { printer, bar: None, began: Instant::now(), last: Progress::default() }
    }

    fn tell(&mut self, progress: &Progress) {
        self.last = *progress;
        if self.began.elapsed().as_secs_f64() >= WORTH_A_LINE_S {
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

    fn finish(mut self) {
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
