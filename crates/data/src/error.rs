//! Everything that can be wrong with data or a tokenizer, each with the place and the way out.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A row in a file: what an error points at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub file: Arc<Path>,
    /// 1-based. For JSONL and text the (first) line, so that an editor finds it; else the row within the file.
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
        "no file matches {pattern}\nhint: check the pattern under `data:`; `**` stands for folders in folders, and only .jsonl, .json, .csv, .tsv, .txt (also with .gz, .zst), .parquet and .arrow files count"
    )]
    NoMatch { pattern: String },
    #[error(
        "{pattern} is not a pattern of files: {reason}\nhint: `*` and `?` stand for parts of a name, `**/` for folders"
    )]
    BadPattern { pattern: String, reason: String },
    #[error("no data file in {}\nhint: the folder itself must hold .jsonl, .json, .csv, .tsv, .txt (also with .gz, .zst), .parquet or .arrow files; for folders in it write {}/**/*", path.display(), path.display())]
    NoDataInFolder { path: PathBuf },
    #[error("{units} files and row groups are more than a dataset can number (2^32)\nhint: join small files")]
    TooManyFiles { units: usize },
    #[error(
        "{}: the extension does not say what the file holds\nhint: name it .jsonl (one JSON object per line), .json (a list of objects), .csv, .tsv, .txt, .parquet or .arrow; all but the last two may end in .gz or .zst",
        path.display()
    )]
    UnknownExtension { path: PathBuf },
    #[error("{}: its name promises {expected} and it holds {found}\nhint: {hint}", path.display())]
    NotItsKind { path: PathBuf, expected: &'static str, found: &'static str, hint: &'static str },
    #[error("{}: cannot read on behind byte {offset}: {source}\nhint: check the disk and the file's permissions", path.display())]
    Read { path: PathBuf, offset: u64, source: std::io::Error },
    #[error(
        "{}: the file changed while it was in use: it had {was} bytes, now {is}\nhint: let whatever writes it finish, then start again",
        path.display()
    )]
    Changed { path: PathBuf, was: u64, is: u64 },
    #[error(
        "{}: the {packing} data ends early, behind {offset} unpacked bytes\nhint: the file was not written or copied to its end; make it again",
        path.display()
    )]
    CutShort { path: PathBuf, packing: &'static str, offset: u64 },
    #[error(
        "{}: cannot unpack the {packing} data behind {offset} unpacked bytes: {reason}\nhint: the file is damaged, or a part of it needs a window above 128 MiB or one larger than its beginning does; pack it again as one",
        path.display()
    )]
    Unpack { path: PathBuf, packing: &'static str, offset: u64, reason: String },
    #[error("{}: no rows found: {reason}\nhint: a .json file holds a list of objects, [{{…}}, …], or one object per line", path.display())]
    NoRowsInJson { path: PathBuf, reason: String },
    #[error("{} {what}, which can be read only once, and data is read more than once\nhint: write it into a file and name that", path.display())]
    NotAFile { path: PathBuf, what: &'static str },
    #[error("{} holds the splits {splits}\nhint: choose one: {example}", path.display())]
    SeveralSplits { path: PathBuf, splits: String, example: String },
    #[error("{}: not a readable Arrow file: {reason}\nhint: write it again, or convert it to Parquet", path.display())]
    BadArrow { path: PathBuf, reason: String },
    #[error("{}: not a readable Parquet file: {reason}\nhint: write it again or convert it to JSONL", path.display())]
    BadParquet { path: PathBuf, reason: String },
    #[error(
        "{name} has no part {unit} to read on from\nhint: the files are not those the position was taken from; start again"
    )]
    NoSuchPosition { name: String, unit: u32 },
    #[error(
        "data.columns names `{known}`, which no format knows\nhint: write known column: your column; known are {allowed}"
    )]
    UnknownColumn { known: String, allowed: String },
    #[error("data.columns names `{known}` twice\nhint: a column can be read from one other only")]
    ColumnTwice { known: String },
    #[error(
        "data.columns reads `{known}` from `{own}`, which none of the first rows of {files} has; they have {columns}\nhint: correct the name; it is written as in the file, capitals included"
    )]
    NoSuchColumn { files: String, known: String, own: String, columns: String },
    #[error("no rows in {files}\nhint: a dataset needs at least one row")]
    Empty { files: String },

    // Rows.
    #[error("{at}: the row is not valid UTF-8\nhint: convert the file, for example with `iconv -t UTF-8`")]
    NotUtf8 { at: Place },
    #[error("{at}: not valid JSON: {reason}\nhint: each row must be one complete JSON object")]
    BadJson { at: Place, reason: String },
    #[error(
        "{at}: the file ends within the row: not valid JSON: {reason}\nhint: whatever wrote it did not finish; remove the row or write the file again"
    )]
    HalfWritten { at: Place, reason: String },
    #[error(
        "{at}: expected a JSON object, found {found}\nhint: write each row as {{\"text\": …}} or another accepted shape"
    )]
    NotAnObject { at: Place, found: &'static str },
    #[error(
        "{at}: not a valid row of the table: {reason}\nhint: each row has as many fields as the header; quote fields that hold the separator, a quote or a line break"
    )]
    BadTable { at: Place, reason: String },
    #[error("{}: the header is not usable: {reason}\nhint: the first line names the columns, each once, separated by {separator}", path.display())]
    BadHeader { path: PathBuf, reason: String, separator: &'static str },
    #[error("{at}: the row has {bytes} bytes, more than {max}\nhint: split it, or check that the file has line breaks")]
    RowTooLarge { at: Place, bytes: u64, max: usize },
    #[error(
        "{at}: the row group is damaged and its last {rows} rows are lost: {reason}\nhint: write the file again or convert it to JSONL"
    )]
    BadRowGroup { at: Place, rows: u64, reason: String },
    #[error("{at}: no column for {wanted}; the row has {columns}\nhint: accepted are {accepted}")]
    MissingColumn { at: Place, wanted: &'static str, columns: String, accepted: &'static str },
    #[error("{at}: `{column}` is {found}, expected {expected}\nhint: correct the row or remove it")]
    WrongType { at: Place, column: String, found: &'static str, expected: &'static str },
    #[error(
        "{at}: `{place}` is {speaker:?}, which is no known speaker\nhint: known are human, gpt, system, tool and their usual synonyms; or write role and content"
    )]
    UnknownSpeaker { at: Place, place: String, speaker: String },
    #[error(
        "{at}: `{place}` is a part of type {kind:?}; only text can be learnt from\nhint: leave other parts out, or remove the row"
    )]
    NotATextPart { at: Place, place: String, kind: String },
    #[error(
        "{at}: the conversation has no assistant turn to learn from\nhint: add an answer (one of weight 0 is not learnt) or remove the row"
    )]
    NoAnswer { at: Place },
    #[error(
        "{at}: task `pretrain` needs a `text` column and the rows are {found}\nhint: use `task: sft`, or give the column `text`"
    )]
    NotText { at: Place, found: &'static str },
    #[error("{at}: task `reward` compares two answers and the rows are {found}\nhint: accepted are {accepted}")]
    NotPairs { at: Place, found: &'static str, accepted: &'static str },
    #[error("{at}: a source and a target are needed and the rows are {found}\nhint: accepted are {accepted}")]
    NotSourceTarget { at: Place, found: &'static str, accepted: &'static str },
    #[error("{at}: the rows have a prompt and no response\nhint: add a column `response`")]
    NoResponse { at: Place },
    #[error(
        "{at}: the row is a conversation (it has more than a prompt and a response as texts), and the tokenizer has no chat template to write it with\nhint: choose one with data.template, for example chatml"
    )]
    NeedsTemplate { at: Place },
    #[error(
        "{at}: `{column}` cannot be learnt from: {reason}\nhint: use a template that writes it (data.template), or remove the row"
    )]
    NotRendered { at: Place, column: &'static str, reason: &'static str },
    #[error(
        "{at}: {reason}\nhint: a class is an integer from 0, or a name where the classes are named; correct the row or remove it"
    )]
    BadLabel { at: Place, reason: String },
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
    #[error("unknown chat template `{name}`\nhint: known are {known}; or give the path of a .jinja file")]
    UnknownTemplate { name: String, known: String },
    #[error(
        "template {name} ends turns with {end}, which is no token of this tokenizer, so the model could not learn to stop\nhint: choose another template, or one of the tokenizer's own family"
    )]
    NoEndOfTurn { name: String, end: String },
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

    #[error("cannot train a tokenizer: {reason}\nhint: give more text, or ask for another size or kind of vocabulary")]
    Vocabulary { reason: String },
    #[error("cannot write {}: {source}\nhint: check the path and the space on the disk", path.display())]
    Write { path: PathBuf, source: std::io::Error },

    // Dataset.
    #[error(
        "{bad} of {rows} rows cannot be used, more than the {allowed_percent} % that are allowed:\n  {named}\nhint: correct or remove them, or allow a larger share with data.bad_rows"
    )]
    TooManyBadRows { bad: u64, rows: u64, allowed_percent: f64, named: String },
    #[error(
        "the weight {weight} of source {source_number} {reason}\nhint: give every source a weight of similar size, or none at all"
    )]
    Weight { source_number: usize, weight: f64, reason: &'static str },
    #[error("of {sources} sources, {weighted} have a weight\nhint: give a weight to all of them or to none")]
    SomeWeights { sources: usize, weighted: usize },
    #[error(
        "a stream buffer of {bytes} bytes is too small for sequences of up to {max_length} tokens\nhint: give it at least {needed} bytes, or lower data.max_length"
    )]
    StreamBuffer { bytes: u64, needed: u64, max_length: usize },
    #[error(
        "the tokenised data does not fit into memory: {bytes} bytes after {share_percent:.0} % of the rows, and {limit} are available\nhint: use data.mode: cached or streaming, or raise memory.host"
    )]
    MemoryFull { bytes: u64, share_percent: f64, limit: u64 },
    #[error("cannot start a thread: {source}\nhint: check the limits on processes and memory (`ulimit -a`)")]
    Thread { source: std::io::Error },
    #[error("the data could not be read as it was planned\nhint: this is a defect of the program; please report it")]
    Malformed,

    // Cache.
    #[error("cannot write the tokenised data to {}: {source}\nhint: free some space, or choose another folder for it", path.display())]
    CacheWrite { path: PathBuf, source: std::io::Error },
    #[error("cannot read the tokenised data in {}: {source}\nhint: check the disk, or remove the file to have it made again", path.display())]
    CacheRead { path: PathBuf, source: std::io::Error },
    #[error(
        "the tokenised data in {} is damaged: {what}\nhint: {}", path.display(),
        if *moved { "the file was put aside; start again to have it made again" } else { "remove the file to have it made again" }
    )]
    CacheDamaged { path: PathBuf, what: &'static str, moved: bool },
    #[error(
        "the tokenised data would need {needed} bytes at {}, and {free} are free\nhint: free some space, choose another folder for it, or stream the data instead",
        path.display()
    )]
    NoSpace { path: PathBuf, needed: u64, free: u64 },

    // Feed.
    #[error(
        "the data or its order is not what the run was stopped with\nhint: go on with the same files, seed, weights and stream buffer, or start the data from the beginning"
    )]
    OtherCursor,
    #[error("the data cannot be fed: {reason}\nhint: check the batch and the number of ranks")]
    Feed { reason: String },
    #[error("the data was stopped")]
    Stopped,

    // Packing.
    #[error(
        "sequence {index} of the update has {length} tokens, a micro-batch holds {capacity}\nhint: plan with micro-batches of at least {length} tokens"
    )]
    DoesNotFit { index: usize, length: usize, capacity: usize },
    #[error(
        "{sequences} sequences of up to {max_length} tokens are more than one update can number (2^32)\nhint: lower batch.sequences or data.max_length"
    )]
    TooManyTokens { sequences: u64, max_length: usize },
}

impl DataError {
    /// Whether a policy may leave the row out and go on; anything else ends the reading.
    pub fn is_bad_row(&self) -> bool {
        matches!(
            self,
            Self::NotUtf8 { .. }
                | Self::BadJson { .. }
                | Self::HalfWritten { .. }
                | Self::NotAnObject { .. }
                | Self::RowTooLarge { .. }
                | Self::BadRowGroup { .. }
                | Self::MissingColumn { .. }
                | Self::WrongType { .. }
                | Self::UnknownSpeaker { .. }
                | Self::NotATextPart { .. }
                | Self::NoAnswer { .. }
                | Self::NeedsTemplate { .. }
                | Self::NotRendered { .. }
                | Self::BadTable { .. }
                | Self::BadLabel { .. }
                | Self::Render { .. }
                | Self::NotIncremental { .. }
                | Self::Tokenise { .. }
        )
    }

    /// Rows that are not there because of this error.
    pub fn rows_lost(&self) -> u64 {
        match self {
            Self::BadRowGroup { rows, .. } => *rows,
            other => u64::from(other.is_bad_row()),
        }
    }
}
