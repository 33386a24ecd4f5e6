//! Everything that can be wrong with data or a tokenizer, each with the place and the way out.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A row in a file: what an error points at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub file: Arc<Path>,
    /// 1-based. For JSONL the line, so that an editor finds it; for Parquet the row.
    pub row: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, row {}", self.file.display(), self.row)
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    // Files.
    #[error("cannot read {}: {source}\nhint: check the path under `data:`", path.display())]
    Open { path: PathBuf, source: std::io::Error },
    #[error(
        "{}: the extension does not say what the file holds\nhint: name it .jsonl (one JSON object per line) or .parquet",
        path.display()
    )]
    UnknownExtension { path: PathBuf },
    #[error("{at}: cannot read on: {source}\nhint: check the disk and the file's permissions")]
    Read { at: Place, source: std::io::Error },
    #[error("{at}: the line is not valid UTF-8\nhint: convert the file, for example with `iconv -t UTF-8`")]
    NotUtf8 { at: Place },
    #[error("{at}: not valid JSON: {reason}\nhint: each line must hold one complete JSON object")]
    BadJson { at: Place, reason: String },
    #[error(
        "{at}: expected a JSON object, found {found}\nhint: write each line as {{\"text\": …}} or another accepted shape"
    )]
    NotAnObject { at: Place, found: &'static str },
    #[error("{}: not a readable Parquet file: {reason}\nhint: write it again or convert it to JSONL", path.display())]
    BadParquet { path: PathBuf, reason: String },
    #[error("{at}: cannot decode the Parquet row: {reason}\nhint: write the file again or convert it to JSONL")]
    BadParquetRow { at: Place, reason: String },
    #[error("no rows in {files}\nhint: a dataset needs at least one row")]
    Empty { files: String },

    // Rows.
    #[error("{at}: no column for {wanted}; the row has {columns}\nhint: accepted are {accepted}")]
    MissingColumn { at: Place, wanted: &'static str, columns: String, accepted: &'static str },
    #[error("{at}: `{column}` is {found}, expected {expected}\nhint: correct the row or remove it")]
    WrongType { at: Place, column: String, found: &'static str, expected: &'static str },
    #[error(
        "{at}: the conversation has no assistant turn, so there is nothing to learn\nhint: add an answer or remove the row"
    )]
    NoAnswer { at: Place },
    #[error(
        "{at}: task `pretrain` needs a `text` column and the rows are {found}\nhint: use `task: sft`, or give the column `text`"
    )]
    NotText { at: Place, found: &'static str },
    #[error("{at}: task `reward` compares two answers and the rows are {found}\nhint: accepted are {accepted}")]
    NotPairs { at: Place, found: &'static str, accepted: &'static str },
    #[error(
        "{at}: the rows are pairs of answers, which this task has no use for\nhint: use `task: reward`, or give the columns of another shape"
    )]
    OnlyPairs { at: Place },
    #[error(
        "none of the {rows} pairs is left: {identical} have two equal sides, the others' answers are longer than max_length = {max_length}\nhint: raise data.max_length, or check the columns"
    )]
    NoPairsLeft { rows: u64, identical: u64, max_length: usize },
    #[error(
        "{at}: {length} tokens, more than max_length = {max_length}\nhint: raise data.max_length, or set data.overlong to `truncate` or `skip`"
    )]
    TooLong { at: Place, length: usize, max_length: usize },
    #[error(
        "nothing to learn is left of the {rows} rows: each is empty, or has no answer within max_length = {max_length}\nhint: raise data.max_length"
    )]
    NothingLeft { rows: u64, max_length: usize },
    #[error("max_length = {max_length} leaves no token to predict\nhint: set data.max_length to 2 or more")]
    MaxLength { max_length: usize },

    // Templates.
    #[error(
        "the chat template of {origin} cannot be compiled: {reason}\nhint: correct chat_template in the tokenizer's folder"
    )]
    BadTemplate { origin: String, reason: String },
    #[error("{at}: the chat template refused the conversation: {reason}\nhint: correct the row or the template")]
    Render { at: Place, reason: String },
    #[error(
        "{at}: the chat template rewrites earlier text when turn {turn} is added, so the answer cannot be told from the prompt\nhint: give each answer a row of its own, or use a template that only appends"
    )]
    NotIncremental { at: Place, turn: usize },

    // Tokenizer.
    #[error("{} is missing\nhint: the model's folder must hold the tokenizer; download it together with the weights", path.display())]
    TokenizerMissing { path: PathBuf },
    #[error("{origin} is not usable as a tokenizer: {reason}\nhint: download the file again")]
    TokenizerCorrupt { origin: String, reason: String },
    #[error("{at}: cannot tokenise: {reason}\nhint: correct the row or remove it")]
    Tokenise { at: Place, reason: String },
    #[error("cannot encode or decode: {reason}\nhint: check that tokenizer.json belongs to this model")]
    Codec { reason: String },
    #[error(
        "the tokenizer of {origin} names no end-of-sequence token, so texts and answers could not end\nhint: add \"eos_token\" to tokenizer_config.json"
    )]
    NoEos { origin: String },

    // Packing.
    #[error(
        "sequence {index} of the update has {length} tokens, a micro-batch holds {capacity}\nhint: plan with micro-batches of at least {length} tokens"
    )]
    DoesNotFit { index: usize, length: usize, capacity: usize },
    #[error(
        "{sequences} sequences of up to {max_length} tokens are more than one update can number (2^31)\nhint: lower batch.sequences or data.max_length"
    )]
    TooManyTokens { sequences: usize, max_length: usize },
}
