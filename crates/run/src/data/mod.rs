//! Opening the data of a run: files, or the built-in dataset.

mod example;
mod footprint;
mod inspect;
mod report;
mod storage;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value;

use plimsoll_data::{
    BadRows, ColumnNames, Content, DataError, Dataset, Encoder, Format, HoldOut, Options, OverLong, Row, RowFormat,
    Sources, StorageMode, Tokenizer, quickstart,
};
use plimsoll_runtime::weights::is_pointer;
use plimsoll_train::{Model, Task, TrainError, hub_snapshot};

use crate::artifact::Artifact;
use crate::config::{DataFormat, Overlong, Resolved, SourceEntry};
use crate::diagnostics::{data_sources, data_template};
use crate::failure::Failure;
use crate::note::DetectedFormat;
use crate::observer::Observer;

pub use example::{ExampleText, Piece};
pub use footprint::RunFootprint;
pub use inspect::{Inspected, inspect};
pub use storage::Stored;

/// Everything a run reads besides weights.
pub struct RunData {
    pub tokenizer: Arc<Tokenizer>,
    /// Written beside the trained weights.
    pub tokenizer_files: Vec<(String, Vec<u8>)>,
    pub train: Dataset,
    pub eval: Option<Dataset>,
    /// How the training data is stored.
    pub stored: Stored,
    /// Of each source of training data.
    formats: Vec<DetectedFormat>,
}

/// What opening the data of a run needs to know.
pub struct Context<'a> {
    pub resolved: &'a Resolved,
    /// The run's folder.
    pub out: &'a Path,
    /// The host's memory budget.
    pub host_bytes: u64,
    /// What chat templates take for the present.
    pub now: SystemTime,
}

/// What stands in `data.train` for the dataset that comes with the program.
const BUILT_IN: &str = "builtin:quickstart";

/// Files of a tokenizer, as far as a folder has them.
const TOKENIZER_FILES: [&str; 11] = [
    "tokenizer.json",
    CONFIG_FILE,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "generation_config.json",
    TEMPLATE_FILE,
];

const CONFIG_FILE: &str = "tokenizer_config.json";

/// Templates for other purposes, by name.
const MORE_TEMPLATES: &str = "additional_chat_templates";

const TEMPLATE_FILE: &str = "chat_template.jinja";

/// What stands in `data.template` for the tokenizer's own.
const AUTO: &str = "auto";

impl RunData {
    pub fn footprint(&self) -> RunFootprint {
        RunFootprint::held(self.train.footprint(), self.eval.as_ref().map(Dataset::footprint))
    }
}

/// The files of a run, looked at and not yet tokenised.
struct Inputs {
    tokenizer: Arc<Tokenizer>,
    tokenizer_folder: PathBuf,
    train: (Sources, Options),
    eval: Option<(Sources, Options)>,
}

fn inputs(context: &Context<'_>, model: &Model, options: Options) -> Result<Inputs, Failure> {
    let resolved = context.resolved;
    let data = &resolved.run.data;
    let tokenizer_folder = tokenizer_folder(resolved, model)?;
    refuse_pointer(&tokenizer_folder.join("tokenizer.json"))?;
    let files = data.train.iter().map(|entry| entry.path.as_str()).chain(data.eval.iter().map(String::as_str));
    files.map(Path::new).try_for_each(refuse_pointer)?;
    let tokenizer = Arc::new(with_template(Tokenizer::from_folder(&tokenizer_folder)?, context)?);
    let hold_out = |held| {
        let hold_out = data.eval_split.map(|share| HoldOut { share, seed: resolved.run.seed, held });
        Options { hold_out, ..options.clone() }
    };
    let train = storage::sources(&data.train, &options).map_err(|error| data_sources(error, resolved))?;
    let eval = match (data.eval_split, data.eval.is_empty()) {
        (Some(_), _) => Some((train.held_out(), hold_out(true))),
        (None, false) => {
            let entry = |path: &String| SourceEntry { path: path.clone(), weight: None };
            let entries: Vec<SourceEntry> = data.eval.iter().map(entry).collect();
            Some((storage::sources(&entries, &options)?, options.clone()))
        }
        (None, true) => None,
    };
    Ok(Inputs { tokenizer, tokenizer_folder, train: (train, hold_out(false)), eval })
}

fn is_built_in(sources: &[SourceEntry]) -> bool {
    matches!(sources, [SourceEntry { path, .. }] if path == BUILT_IN)
}

pub fn open(
    context: &Context<'_>,
    model: &Model,
    task: &dyn Task,
    observer: &mut dyn Observer,
) -> Result<RunData, Failure> {
    let resolved = context.resolved;
    let data = &resolved.run.data;
    if data.train.is_empty() {
        return Err(Failure::config("`data.train` is missing")
            .hint("set it to the file or files to train on, as in data: {train: train.jsonl}"));
    }
    let options = options(context, task.content())?;
    if is_built_in(&data.train) {
        return built_in(context, &options);
    }
    let Inputs { tokenizer, tokenizer_folder, train, eval } = inputs(context, model, options)?;
    let store = storage::Store { context, tokenizer: &tokenizer };
    let (sources, options) = train;
    let (formats, conversations) = (report::formats(&sources), sources.has_conversations());
    let opened = store.open(sources, &options, true, observer);
    let (train, stored) = opened.map_err(|error| data_sources(error, resolved))?;
    let left = context.host_bytes.saturating_sub(train.footprint().resident_bytes);
    let eval = match eval {
        Some((sources, options)) => {
            let options = Options { memory_bytes_max: Some(left), ..options };
            let opened = store.open(sources, &options, false, observer);
            if options.hold_out.is_some() { held_out(opened)? } else { Some(opened?.0) }
        }
        None => None,
    };
    let rows = RowsAre { format: train.summary().format, conversations };
    let tokenizer_files = exported_files(tokenizer_files(&tokenizer_folder)?, &tokenizer, rows, &options, resolved)?;
    Ok(RunData { tokenizer, tokenizer_files, train, eval, stored, formats })
}

/// What the data of a run will take in memory, judged without storing anything. `None` for a run that names no data.
pub fn forecast(context: &Context<'_>, model: &Model, task: &dyn Task) -> Result<Option<RunFootprint>, Failure> {
    let train = &context.resolved.run.data.train;
    if train.is_empty() {
        return Ok(None);
    }
    let options = options(context, task.content())?;
    if is_built_in(train) {
        let RunData { train, eval, .. } = built_in(context, &options)?;
        return Ok(Some(RunFootprint::forecast(train.footprint(), eval.as_ref().map(Dataset::footprint))));
    }
    let Inputs { tokenizer, train, eval, .. } = inputs(context, model, options)?;
    let store = storage::Store { context, tokenizer: &tokenizer };
    let of = |(sources, options): (Sources, Options)| store.forecast(sources, &options);
    Ok(Some(RunFootprint::forecast(of(train)?, eval.map(of).transpose()?)))
}

/// What a model is evaluated on: `data.eval`, else what the run holds out of its training data.
pub fn open_eval(
    context: &Context<'_>,
    artifact: &Artifact,
    task: &dyn Task,
    observer: &mut dyn Observer,
) -> Result<(Dataset, Arc<Tokenizer>, Vec<DetectedFormat>), Failure> {
    let resolved = context.resolved;
    let data = &resolved.run.data;
    let options = options(context, task.content())?;
    if data.eval.is_empty() && is_built_in(&data.train) {
        let built_in = built_in(context, &options)?;
        return Ok((built_in.eval.unwrap_or(built_in.train), built_in.tokenizer, built_in.formats));
    }
    let folder = data.tokenizer.as_ref().map_or_else(|| artifact.tokenizer_folder(), PathBuf::from);
    let tokenizer = Arc::new(with_template(Tokenizer::from_folder(&folder)?, context)?);
    let vocabulary = artifact.model.config.vocab_size;
    if tokenizer.vocab_size() > vocabulary {
        return Err(TrainError::Vocabulary { tokenizer: tokenizer.vocab_size(), model: vocabulary }.into());
    }
    let file = |path: &String| SourceEntry { path: path.clone(), weight: None };
    let (entries, hold_out) = match (data.eval.is_empty(), data.eval_split) {
        (false, _) => (data.eval.iter().map(file).collect(), None),
        (true, Some(share)) => (data.train.clone(), Some(HoldOut { share, seed: resolved.run.seed, held: true })),
        (true, None) => {
            return Err(Failure::config(
                "there is no evaluation data: neither `data.eval` nor `data.eval_split` is set",
            )
            .hint("give a file with --data FILE"));
        }
    };
    let sources = storage::sources(&entries, &options).map_err(|error| data_sources(error, resolved))?;
    let formats = report::formats(&sources);
    let sources = if hold_out.is_some() { sources.held_out() } else { sources };
    let store = storage::Store { context, tokenizer: &tokenizer };
    let dataset = store.open(sources, &Options { hold_out, ..options }, false, observer)?.0;
    Ok((dataset, tokenizer, formats))
}

/// A repository cloned without Git LFS has small text files in the place of large ones.
fn refuse_pointer(path: &Path) -> Result<(), Failure> {
    if !is_pointer(path) {
        return Ok(());
    }
    Err(Failure::bad_input(format!("{} is a Git LFS pointer, not the file itself", path.display()))
        .hint("run `git lfs pull` in its folder, or download the file again"))
}

/// `data.tokenizer`, or the model's own folder.
fn tokenizer_folder(resolved: &Resolved, model: &Model) -> Result<PathBuf, Failure> {
    let found = |name: &String| match hub_snapshot(name) {
        Some(folder) if !Path::new(name).is_dir() => folder,
        _ => PathBuf::from(name),
    };
    let given = resolved.run.data.tokenizer.as_ref().map(found);
    given.or_else(|| model.folder().map(Path::to_owned)).ok_or_else(|| {
        Failure::bad_input("no tokenizer: the model is given by its shape and has no folder")
            .hint("set data.tokenizer to a folder with a tokenizer.json")
    })
}

/// The tokenizer with the chat template the run asks for.
fn with_template(tokenizer: Tokenizer, context: &Context<'_>) -> Result<Tokenizer, Failure> {
    let Context { resolved, now, .. } = *context;
    let tokenizer = tokenizer.with_template(&resolved.run.data.template);
    Ok(tokenizer.map_err(|error| data_template(error, resolved))?.with_now(now))
}

/// A few rows may have none to hold out.
fn held_out(opened: Result<(Dataset, Stored), DataError>) -> Result<Option<Dataset>, DataError> {
    match opened {
        Err(DataError::NothingLeft { rows: 0, .. } | DataError::NoPairsLeft { rows: 0, .. }) => Ok(None),
        opened => opened.map(|(dataset, _)| Some(dataset)),
    }
}

fn options(context: &Context<'_>, content: Content) -> Result<Options, DataError> {
    let run = &context.resolved.run;
    let mut options = Options::new(content, run.data.max_length as usize);
    options.classes = run.data.classes.clone();
    options.columns = ColumnNames::new(run.data.columns.iter().flat_map(|columns| columns.given()))?;
    options.memory_bytes_max = Some(context.host_bytes);
    options.format = match run.data.format {
        DataFormat::Auto => Format::Auto,
        DataFormat::Text => Format::As(RowFormat::Text),
        DataFormat::PromptResponse => Format::As(RowFormat::PromptResponse),
        DataFormat::PromptMessages => Format::As(RowFormat::PromptMessages),
        DataFormat::Messages => Format::As(RowFormat::Messages),
        DataFormat::Conversations => Format::As(RowFormat::Conversations),
        DataFormat::Pairs => Format::As(RowFormat::Pairs),
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
    Ok(options)
}

fn built_in(context: &Context<'_>, options: &Options) -> Result<RunData, Failure> {
    let resolved = context.resolved;
    let tokenizer = Arc::new(with_template(quickstart::tokenizer()?, context)?);
    let dataset = |rows: Vec<Row>| Dataset::from_rows(rows.into_iter().map(Ok), BUILT_IN, &tokenizer, options);
    let rows = quickstart::train_rows(resolved.run.seed);
    let format = |row| options.content.row_format(options.format, row).map(|format| format.explain(row));
    let format = rows.first().map(format).transpose()?;
    let train = dataset(rows)?;
    let eval = dataset(quickstart::eval_rows(resolved.run.seed))?;
    let files = quickstart::tokenizer_files().map(|(name, text)| (name.to_owned(), text.into_bytes()));
    let rows = RowsAre { format: train.summary().format, conversations: false };
    let tokenizer_files = exported_files(files.to_vec(), &tokenizer, rows, options, resolved)?;
    let stored = Stored { mode: StorageMode::Memory, folder: None, reason: "the dataset is built in".to_owned() };
    let formats = format.into_iter().map(|format| DetectedFormat { source: BUILT_IN.to_owned(), format }).collect();
    Ok(RunData { tokenizer, tokenizer_files, train, eval: Some(eval), stored, formats })
}

/// What decides about the template that rows are written with.
struct RowsAre {
    format: RowFormat,
    conversations: bool,
}

/// The files with the template that was chosen, or taken because there was none: prompts of the trained model, and what it
/// is to score, have to be written as in training.
fn exported_files(
    mut files: Vec<(String, Vec<u8>)>,
    tokenizer: &Tokenizer,
    RowsAre { format, conversations }: RowsAre,
    options: &Options,
    resolved: &Resolved,
) -> Result<Vec<(String, Vec<u8>)>, DataError> {
    let has_template = tokenizer.chat_template().is_some();
    let own = resolved.run.data.template == AUTO && has_template;
    // Pairs of plain texts go without a template where the tokenizer has none.
    if own || (format == RowFormat::Pairs && !has_template && !conversations) {
        return Ok(files);
    }
    if let Some(template) = Encoder::new(tokenizer, format, options)?.template() {
        files.retain(|(name, _)| name != TEMPLATE_FILE);
        if let Some((_, config)) = files.iter_mut().find(|(name, _)| name == CONFIG_FILE) {
            *config = without_template(config);
        }
        files.push((TEMPLATE_FILE.to_owned(), template.source().as_bytes().to_vec()));
    }
    Ok(files)
}

/// The tokenizer's configuration without the template that was not used; some readers would prefer it.
fn without_template(config: &[u8]) -> Vec<u8> {
    let Ok(Value::Object(mut keys)) = serde_json::from_slice(config) else { return config.to_vec() };
    match keys.remove("chat_template") {
        Some(_) => serde_json::to_vec_pretty(&keys).expect("plain data"),
        None => config.to_vec(),
    }
}

pub(crate) fn tokenizer_files(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut files = Vec::new();
    for name in TOKENIZER_FILES {
        let path = folder.join(name);
        if path.exists() {
            let bytes = fs::read(&path).map_err(|e| Failure::bad_input(format!("{}: {e}", path.display())))?;
            files.push((name.to_owned(), bytes));
        }
    }
    let Ok(entries) = fs::read_dir(folder.join(MORE_TEMPLATES)) else { return Ok(files) };
    let mut templates: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    templates.retain(|path| path.extension().is_some_and(|end| end == "jinja"));
    templates.sort();
    for path in templates {
        let bytes = fs::read(&path).map_err(|e| Failure::bad_input(format!("{}: {e}", path.display())))?;
        let name = path.file_name().expect("an entry").to_string_lossy().into_owned();
        files.push((format!("{MORE_TEMPLATES}/{name}"), bytes));
    }
    Ok(files)
}
