//! Opening the data of a run: files, or the built-in dataset.

use std::fs;
use std::path::Path;

use plimsoll_data::{DataError, Dataset, Format, Options, OverLong, Row, Source, Summary, Task, Tokenizer, quickstart};
use plimsoll_train::Model;

use crate::config::{self, DataFormat, Overlong, Resolved};
use crate::error::Failure;

/// Everything a run reads besides weights.
pub struct RunData {
    pub tokenizer: Tokenizer,
    /// Written beside the trained weights.
    pub tokenizer_files: Vec<(String, Vec<u8>)>,
    pub train: Dataset,
    pub eval: Option<Dataset>,
}

/// What stands in `data.train` for the dataset that comes with the program.
const BUILT_IN: &str = "builtin:quickstart";

/// Files of a tokenizer, as far as a folder has them.
const TOKENIZER_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"];

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        Failure::bad_input(error.to_string())
    }
}

impl RunData {
    pub fn resident_bytes(&self) -> u64 {
        let eval = self.eval.as_ref().map_or(0, Dataset::resident_bytes);
        (self.train.resident_bytes() + eval) as u64
    }

    /// What became of the rows that were not taken as they are, in one line for each dataset that has any.
    pub fn notes(&self) -> Vec<String> {
        let named = [("training data", Some(&self.train)), ("held-out data", self.eval.as_ref())];
        let told = |(name, data): (&str, Option<&Dataset>)| note(name, data?.summary());
        named.into_iter().filter_map(told).collect()
    }
}

fn note(name: &str, summary: &Summary) -> Option<String> {
    let told: Vec<String> = [
        (summary.truncated, "shortened"),
        (summary.skipped, "left out because they are too long or have no answer"),
        (summary.identical, "left out because both answers are the same"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect();
    (!told.is_empty()).then(|| format!("{name}: of {} rows, {}", summary.rows, told.join(", ")))
}

pub fn open(resolved: &Resolved, model: &Model) -> Result<RunData, Failure> {
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
    let tokenizer = Tokenizer::from_folder(folder)?;
    let (train, eval) = match data.eval_split {
        Some(share) => split(&data.train, share, &tokenizer, &options)?,
        None => {
            let eval =
                if data.eval.is_empty() { None } else { Some(Dataset::from_files(&data.eval, &tokenizer, &options)?) };
            (Dataset::from_files(&data.train, &tokenizer, &options)?, eval)
        }
    };
    Ok(RunData { tokenizer, tokenizer_files: tokenizer_files(folder)?, train, eval })
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
    options
}

fn built_in(resolved: &Resolved, options: &Options) -> Result<RunData, Failure> {
    let tokenizer = quickstart::tokenizer()?;
    let dataset = |rows: Vec<Row>| Dataset::from_rows(rows.into_iter().map(Ok), BUILT_IN, &tokenizer, options);
    let train = dataset(quickstart::train_rows(resolved.run.seed))?;
    let eval = dataset(quickstart::eval_rows(resolved.run.seed))?;
    let files = quickstart::tokenizer_files().map(|(name, text)| (name.to_owned(), text.into_bytes()));
    Ok(RunData { tokenizer, tokenizer_files: files.to_vec(), train, eval: Some(eval) })
}

/// Holds every n-th row back for evaluation.
fn split(
    files: &[String],
    share: f64,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<(Dataset, Option<Dataset>), Failure> {
    let every = (1.0 / share).round().max(2.0) as usize;
    let rows = Source::open(files)?.all().collect::<Result<Vec<Row>, DataError>>()?;
    let (held_out, kept): (Vec<_>, Vec<_>) = rows.into_iter().enumerate().partition(|(i, _)| i % every == every - 1);
    let origin = files.join(", ");
    let dataset = |rows: Vec<(usize, Row)>| {
        Dataset::from_rows(rows.into_iter().map(|(_, row)| Ok(row)), &origin, tokenizer, options)
    };
    let eval = if held_out.is_empty() { None } else { Some(dataset(held_out)?) };
    Ok((dataset(kept)?, eval))
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
