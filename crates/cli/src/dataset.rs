//! Opening the data of a run: files, or the built-in dataset.

mod keep;
mod told;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use keep::Keeper;
use plimsoll_data::{
    Amount, BadRows, Capacity, DataError, Dataset, Encoder, Format, HoldOut, Mode, Options, OverLong, Row, Shape, Task,
    Tokenizer, quickstart,
};
use plimsoll_train::{Model, data_bytes};

use crate::config::{self, DataFormat, Overlong, Resolved, SourceEntry};
use crate::error::Failure;
use crate::printer::Printer;

/// Everything a run reads besides weights.
pub struct RunData {
    pub tokenizer: Arc<Tokenizer>,
    /// Written beside the trained weights.
    pub tokenizer_files: Vec<(String, Vec<u8>)>,
    pub train: Dataset,
    pub eval: Option<Dataset>,
    /// How the training data is kept.
    pub mode: Mode,
    /// In words, and why.
    kept: String,
    /// What the rows were taken for.
    taken_for: Vec<String>,
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

/// Files of a tokenizer, as far as a folder has them.
const TOKENIZER_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", TEMPLATE_FILE];

const TEMPLATE_FILE: &str = "chat_template.jinja";

/// What stands in `data.template` for the tokenizer's own.
const AUTO: &str = "auto";

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
    pub fn feed_bytes(&self, amount: Amount, capacity: Capacity) -> u64 {
        data_bytes(&self.train, self.eval.as_ref(), amount, capacity)
    }
}

pub fn open(here: &Surroundings<'_>, model: &Model) -> Result<RunData, Failure> {
    let resolved = here.resolved;
    let data = &resolved.run.data;
    if data.train.is_empty() {
        return Err(Failure::usage("`data.train` is missing: name the file or files to train on")
            .hint("data: {train: train.jsonl}"));
    }
    let options = options(resolved);
    if matches!(data.train.as_slice(), [SourceEntry { path, .. }] if path == BUILT_IN) {
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
    let tokenizer = Arc::new(with_template(Tokenizer::from_folder(folder)?, resolved)?);
    let hold = |held| data.eval_split.map(|share| HoldOut { every: (1.0 / share).round().max(2.0) as u64, held });
    let keeper = Keeper { here, tokenizer: &tokenizer };
    let taken_for = told::taken_for(&data.train, &options)?;
    let train_options = Options { hold_out: hold(false), ..options };
    let (train, kept) =
        keeper.keep(keep::sources(&data.train)?, &train_options, true).map_err(|error| weights(error, resolved))?;
    let eval = match (data.eval_split, data.eval.is_empty()) {
        (Some(_), _) => {
            let sources = keep::without_weights(keep::sources(&data.train)?);
            held_out(keeper.keep(sources, &Options { hold_out: hold(true), ..options }, false))?
        }
        (None, false) => {
            let sources: Vec<SourceEntry> =
                data.eval.iter().map(|path| SourceEntry { path: path.clone(), weight: None }).collect();
            Some(keeper.keep(keep::sources(&sources)?, &options, false)?.0)
        }
        (None, true) => None,
    };
    let tokenizer_files = kept_files(tokenizer_files(folder)?, &tokenizer, train.summary().shape, resolved)?;
    Ok(RunData { tokenizer, tokenizer_files, train, eval, mode: kept.mode, kept: kept.told, taken_for })
}

/// Weights are checked with the data, but stand in the run file.
fn weights(error: DataError, resolved: &Resolved) -> Failure {
    match error {
        DataError::Weight { .. } | DataError::SomeWeights { .. } => resolved.invalid("data.train", error),
        error => error.into(),
    }
}

/// The tokenizer with the chat template the run asks for.
fn with_template(tokenizer: Tokenizer, resolved: &Resolved) -> Result<Tokenizer, Failure> {
    tokenizer.with_template(&resolved.run.data.template).map_err(|error| match error {
        DataError::UnknownTemplate { .. } | DataError::NoEndOfTurn { .. } | DataError::Open { .. } => {
            resolved.invalid("data.template", error)
        }
        DataError::BadTemplate { origin, reason } => resolved
            .invalid("data.template", format!("the chat template of {origin} cannot be compiled: {reason}"))
            .hint("correct the template"),
        error => error.into(),
    })
}

/// A few rows may have none to hold out.
fn held_out(kept: Result<(Dataset, keep::Kept), DataError>) -> Result<Option<Dataset>, DataError> {
    match kept {
        Err(DataError::NothingLeft { rows: 0, .. } | DataError::NoPairsLeft { rows: 0, .. }) => Ok(None),
        kept => kept.map(|(dataset, _)| Some(dataset)),
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
        DataFormat::Text => Format::As(Shape::Text),
        DataFormat::PromptResponse => Format::As(Shape::PromptResponse),
        DataFormat::Messages => Format::As(Shape::Messages),
        DataFormat::Conversations => Format::As(Shape::Conversations),
        DataFormat::Pairs => Format::As(Shape::Pairs),
    };
    options.over_long = match run.data.overlong {
        Overlong::Error => OverLong::Error,
        Overlong::Truncate => OverLong::Truncate,
        Overlong::Skip => OverLong::Skip,
    };
    if let Some(workers) = run.data.workers {
        options.workers = workers as usize;
    }
    options.bad_rows = match run.data.bad_rows {
        0.0 => BadRows::Fail,
        1.0 => BadRows::Skip,
        share => BadRows::Share(share),
    };
    options
}

fn built_in(resolved: &Resolved, options: &Options) -> Result<RunData, Failure> {
    let tokenizer = Arc::new(with_template(quickstart::tokenizer()?, resolved)?);
    let dataset = |rows: Vec<Row>| Dataset::from_rows(rows.into_iter().map(Ok), BUILT_IN, &tokenizer, options);
    let rows = quickstart::train_rows(resolved.run.seed);
    let shape = rows.first().map(|row| options.format.resolve(row).map(|shape| shape.explain(row))).transpose()?;
    let train = dataset(rows)?;
    let eval = dataset(quickstart::eval_rows(resolved.run.seed))?;
    let files = quickstart::tokenizer_files().map(|(name, text)| (name.to_owned(), text.into_bytes()));
    let tokenizer_files = kept_files(files.to_vec(), &tokenizer, train.summary().shape, resolved)?;
    let kept = "data: memory, because it comes with the program".to_owned();
    let taken_for = shape.into_iter().map(|shape| format!("rows of {BUILT_IN} are taken for {shape}")).collect();
    Ok(RunData { tokenizer, tokenizer_files, train, eval: Some(eval), mode: Mode::Memory, kept, taken_for })
}

/// With the template that was chosen, or taken because there was none: whoever asks the trained model has to write as it
/// was taught.
fn kept_files(
    mut files: Vec<(String, Vec<u8>)>,
    tokenizer: &Tokenizer,
    shape: Shape,
    resolved: &Resolved,
) -> Result<Vec<(String, Vec<u8>)>, DataError> {
    let own = resolved.run.data.template == AUTO && tokenizer.chat_template().is_some();
    // A reward model's pairs may be plain texts, and it answers nobody.
    if own || shape == Shape::Pairs {
        return Ok(files);
    }
    if let Some(template) = Encoder::new(tokenizer, shape)?.template() {
        files.retain(|(name, _)| name != TEMPLATE_FILE);
        files.push((TEMPLATE_FILE.to_owned(), template.source().as_bytes().to_vec()));
    }
    Ok(files)
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
