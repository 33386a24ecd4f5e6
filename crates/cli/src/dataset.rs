//! Opening the data of a run: files, or the built-in dataset.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use plimsoll_data::{
    BadRows, Capacity, Choice, DataError, Dataset, Format, HoldOut, Limits, Mode, Options, OverLong, Progress, Row,
    Source, Summary, Task, Tokenizer, Weighted, choose, quickstart,
};
use plimsoll_train::{Model, data_bytes};

use crate::config::{self, Budget, DataFormat, DataMode, Length, Overlong, Resolved};
use crate::error::Failure;
use crate::printer::{Printer, duration};

/// Everything a run reads besides weights.
pub struct RunData {
    pub tokenizer: Arc<Tokenizer>,
    /// Written beside the trained weights.
    pub tokenizer_files: Vec<(String, Vec<u8>)>,
    pub train: Dataset,
    pub eval: Option<Dataset>,
    /// How the training data is kept and why, where the program decided.
    pub kept: Option<String>,
}

/// Where the run stands: what opening its data needs to know.
pub struct Surroundings<'a> {
    pub resolved: &'a Resolved,
    /// The run's folder.
    pub out: &'a Path,
    pub host_bytes: u64,
    pub printer: &'a Printer,
}

/// What stands in `data.train` for the dataset that comes with the program.
const BUILT_IN: &str = "builtin:quickstart";

/// The folder beside the run in which tokenised data is kept.
const CACHE_FOLDER: &str = "token-cache";

/// What a stream may hold of tokenised data where nobody says.
const STREAM_BUFFER_BYTES: u64 = 96 << 20;

/// Files of a tokenizer, as far as a folder has them.
const TOKENIZER_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match error {
            // Nothing is wrong with the data.
            DataError::CacheWrite { .. } | DataError::NoSpace { .. } | DataError::Thread { .. } => {
                Failure::failed(error.to_string())
            }
            _ => Failure::bad_input(error.to_string()),
        }
    }
}

impl RunData {
    pub fn resident_bytes(&self) -> u64 {
        self.train.resident_bytes() + self.eval.as_ref().map_or(0, Dataset::resident_bytes)
    }

    /// What feeding it takes, given what a micro-batch holds.
    pub fn feed_bytes(&self, sequences: usize, capacity: Capacity) -> u64 {
        data_bytes(&self.train, self.eval.as_ref(), sequences, capacity)
    }

    /// Rows that a stream came by and left out; of other data the notes have told.
    pub fn met(&self) -> Option<String> {
        let met = self.train.bad_rows_met();
        let told = self.train.summary().bad;
        (met > told).then(|| format!("training data: {met} rows were left out on the way because they cannot be read"))
    }

    /// Where the data is kept, and what became of the rows that were not taken as they are.
    pub fn notes(&self) -> Vec<String> {
        let named = [("training data", Some(&self.train)), ("held-out data", self.eval.as_ref())];
        let told = |(name, data): (&str, Option<&Dataset>)| note(name, data?.summary());
        self.kept.clone().into_iter().chain(named.into_iter().filter_map(told)).collect()
    }
}

fn note(name: &str, summary: &Summary) -> Option<String> {
    let told: Vec<String> = [
        (summary.truncated, "shortened"),
        (summary.skipped, "left out because they are too long or have no answer"),
        (summary.identical, "left out because both answers are the same"),
        (summary.bad, "left out because they cannot be read"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    let first: String = summary.bad_first.iter().map(|line| format!("\n  {line}")).collect();
    (!told.is_empty()).then(|| format!("{name}: of {} rows, {}{first}", summary.rows, told.join(", ")))
}

pub fn open(here: &Surroundings<'_>, model: &Model) -> Result<RunData, Failure> {
    let resolved = here.resolved;
    let data = &resolved.run.data;
    if data.train.is_empty() {
        return Err(Failure::usage("`data.train` is missing: name the file or files to train on")
            .hint("data: {train: train.jsonl}"));
    }
    let options = options(resolved);
    if data.train == [BUILT_IN] {
        return built_in(resolved, &options);
    }
    let folder = match (&data.tokenizer, model.folder()) {
        (Some(folder), _) => Path::new(folder),
        (None, Some(folder)) => folder,
        (None, None) => {
            return Err(Failure::bad_input("no tokenizer: the model is given by its shape, without a folder")
                .hint("name a folder with a tokenizer.json as data.tokenizer"));
        }
    };
    let tokenizer = Arc::new(Tokenizer::from_folder(folder)?);
    let hold = |held| data.eval_split.map(|share| HoldOut { every: (1.0 / share).round().max(2.0) as u64, held });
    let keeper = Keeper { here, tokenizer: &tokenizer };
    let (train, choice) = keeper.keep(&data.train, &Options { hold_out: hold(false), ..options }, true)?;
    let eval = match (data.eval_split, data.eval.is_empty()) {
        (Some(_), _) => held_out(keeper.keep(&data.train, &Options { hold_out: hold(true), ..options }, false))?,
        (None, false) => Some(keeper.keep(&data.eval, &options, false)?.0),
        (None, true) => None,
    };
    let kept = choice.map(|Choice { mode, why, .. }| format!("data: {mode}, because {why}"));
    Ok(RunData { tokenizer, tokenizer_files: tokenizer_files(folder)?, train, eval, kept })
}

/// A few rows may have none to hold out.
fn held_out(kept: Result<(Dataset, Option<Choice>), DataError>) -> Result<Option<Dataset>, DataError> {
    match kept {
        Err(DataError::NothingLeft { rows: 0, .. } | DataError::NoPairsLeft { rows: 0, .. }) => Ok(None),
        kept => kept.map(|(dataset, _)| Some(dataset)),
    }
}

/// Keeps datasets as the run says.
struct Keeper<'a> {
    here: &'a Surroundings<'a>,
    tokenizer: &'a Arc<Tokenizer>,
}

impl Keeper<'_> {
    /// `timed`: whether the run's length may depend on how many groups there are.
    fn keep(&self, files: &[String], options: &Options, timed: bool) -> Result<(Dataset, Option<Choice>), DataError> {
        let run = &self.here.resolved.run;
        let folder = self.folder();
        let sources = vec![Weighted::alone(Source::open(files)?)];
        let limits = Limits { host_bytes: self.here.host_bytes, folder: &folder };
        let (sources, choice, mode) = match run.data.mode {
            DataMode::Auto => {
                let (sources, choice) = choose(sources, self.tokenizer, options, &limits)?;
                let mode = choice.mode;
                (sources, Some(choice), mode)
            }
            DataMode::Memory => (sources, None, Mode::Memory),
            DataMode::Cached => (sources, None, Mode::Cached),
            DataMode::Streaming => (sources, None, Mode::Streamed),
        };
        let mut shown = Tokenising::new(self.here.printer);
        let mut observe = |progress: &Progress| shown.tell(progress);
        let dataset = match mode {
            Mode::Memory => Dataset::in_memory(sources, self.tokenizer, options, &mut observe)?,
            Mode::Cached => Dataset::cached(sources, self.tokenizer, options, &folder, &mut observe)?,
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
        Ok((dataset, choice.filter(|choice| choice.mode != Mode::Memory)))
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

impl<'a> Tokenising<'a> {
    fn new(printer: &'a Printer) -> Self {
        Self { printer, bar: None, began: Instant::now(), last: Progress::default() }
    }

    fn tell(&mut self, progress: &Progress) {
        self.last = *progress;
        if self.began.elapsed().as_secs_f64() >= WORTH_A_LINE_S {
            let bar =
                self.bar.get_or_insert_with(|| self.printer.progress("MB tokenised", progress.bytes_total / 1_000_000));
            bar.advance_to(progress.bytes_read / 1_000_000);
        }
    }

    fn finish(mut self) {
        let Some(mut bar) = self.bar.take() else { return };
        bar.finish();
        let (took, Progress { rows, bytes_read, .. }) = (self.began.elapsed(), self.last);
        let rate = |amount: f64| amount / took.as_secs_f64();
        self.printer.note(format!(
            "tokenised {rows} rows, {:.1} MB, in {} ({:.0} rows/s, {:.1} MB/s)",
            bytes_read as f64 / 1e6,
            duration(took),
            rate(rows as f64),
            rate(bytes_read as f64 / 1e6)
        ));
    }
}

fn options(resolved: &Resolved) -> Options {
    let run = &resolved.run;
    let task = match run.task {
        config::Task::Pretrain => Task::Pretrain,
        config::Task::Reward => Task::Reward,
        _ => Task::Sft,
    };
    let mut options = Options::new(task, run.data.max_length as usize);
    options.format = match run.data.format {
        DataFormat::Auto => Format::Auto,
        DataFormat::Text => Format::As(plimsoll_data::Shape::Text),
        DataFormat::PromptResponse => Format::As(plimsoll_data::Shape::PromptResponse),
        DataFormat::Messages => Format::As(plimsoll_data::Shape::Messages),
        DataFormat::Conversations => Format::As(plimsoll_data::Shape::Conversations),
        DataFormat::Pairs => Format::As(plimsoll_data::Shape::Pairs),
    };
    options.over_long = match run.data.overlong {
        Overlong::Error => OverLong::Error,
        Overlong::Truncate => OverLong::Truncate,
        Overlong::Skip => OverLong::Skip,
    };
    options.bad_rows = match run.data.bad_rows {
        0.0 => BadRows::Fail,
        1.0 => BadRows::Skip,
        share => BadRows::Share(share),
    };
    options
}

fn built_in(resolved: &Resolved, options: &Options) -> Result<RunData, Failure> {
    let tokenizer = Arc::new(quickstart::tokenizer()?);
    let dataset = |rows: Vec<Row>| Dataset::from_rows(rows.into_iter().map(Ok), BUILT_IN, &tokenizer, options);
    let train = dataset(quickstart::train_rows(resolved.run.seed))?;
    let eval = dataset(quickstart::eval_rows(resolved.run.seed))?;
    let files = quickstart::tokenizer_files().map(|(name, text)| (name.to_owned(), text.into_bytes()));
    Ok(RunData { tokenizer, tokenizer_files: files.to_vec(), train, eval: Some(eval), kept: None })
}

fn tokenizer_files(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut files = Vec::new();
    for name in TOKENIZER_FILES {
        let path = folder.join(name);
        if path.exists() {
            let bytes = fs::read(&path).map_err(|e| Failure::bad_input(format!("{}: {e}", path.display())))?;
            files.push((name.to_owned(), bytes));
        }
    }
    Ok(files)
}
