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

/// An enum of errors, each with its message and what to do about it.
macro_rules! with_hints {
    (
        $(#[$attribute:meta])*
        pub enum $name:ident {
            $($case:ident $({ $($field:ident: $type:ty),+ $(,)? })? => ($($message:tt)+) $(hint ($($hint:tt)+))?,)+
        }
    ) => {
        $(#[$attribute])*
        pub enum $name {
            $(#[error($($message)+)] $case $({ $($field: $type),+ })?,)+
        }

        impl $name {
            /// What to do about it.
            pub fn hint(&self) -> Option<String> {
                #[expect(unused_variables, reason = "most hints name few of the fields")]
                match self {
                    $(Self::$case $({ $($field),+ })? => with_hints!(@hint $(($($hint)+))?),)+
                }
            }
        }
    };
    (@hint) => { None };
    (@hint ($($hint:tt)+)) => { Some(format!($($hint)+)) };
}

/// Data is read where it is: what names a place elsewhere is told how it comes here.
fn about_path(path: &Path) -> String {
    let name = path.to_string_lossy();
    if name.contains("://") {
        return "nothing is downloaded; fetch the file first and name it here".to_owned();
    }
    let is_plain = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    match name.split_once('/') {
        Some((owner, dataset)) if is_plain(owner) && is_plain(dataset) => format!(
            "check the path under `data:`; a dataset of the hub is not downloaded, `hf download --repo-type dataset {name} \
             --local-dir DIR` does that"
        ),
        _ => "check the path under `data:`".to_owned(),
    }
}

/// Rounded up, so that what is asked for is enough.
fn kib(bytes: u64) -> String {
    format!("{}KiB", bytes.div_ceil(1 << 10))
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

with_hints! {
    #[derive(Debug, thiserror::Error)]
    #[non_exhaustive]
    pub enum DataError {
        // Files.
        Open { path: PathBuf, source: std::io::Error } =>
            ("cannot read {}: {source}", path.display())
            hint ("{}", about_path(path)),
        NoMatch { pattern: String } =>
            ("no file matches {pattern}")
            hint ("check the pattern under `data:`; `**` stands for folders in folders, and only .jsonl, .json, .csv, .tsv, .txt (also with .gz, .zst), .parquet and .arrow files count"),
        BadPattern { pattern: String, reason: String } =>
            ("{pattern} is not a pattern of files: {reason}")
            hint ("`*` and `?` stand for parts of a name, `**/` for folders"),
        NoDataInFolder { path: PathBuf } =>
            ("no data file in {}", path.display())
            hint ("the folder itself must hold .jsonl, .json, .csv, .tsv, .txt (also with .gz, .zst), .parquet or .arrow files; for folders in it write {}/**/*", path.display()),
        TooManyFiles { units: usize } =>
            ("{units} files and row groups are more than a dataset can number (2^32)")
            hint ("join small files"),
        UnknownExtension { path: PathBuf } =>
            ("{}: the extension does not say what the file holds", path.display())
            hint ("name it .jsonl (one JSON object per line), .json (a list of objects), .csv, .tsv, .txt, .parquet or .arrow; all but the last two may end in .gz or .zst"),
        NotItsKind { path: PathBuf, expected: &'static str, found: &'static str, hint: &'static str } =>
            ("{}: its name promises {expected} and it holds {found}", path.display())
            hint ("{hint}"),
        Read { path: PathBuf, offset: u64, source: std::io::Error } =>
            ("{}: cannot read on behind byte {offset}: {source}", path.display())
            hint ("check the disk and the file's permissions"),
        Changed { path: PathBuf, was: u64, is: u64 } =>
            ("{}: the file changed while it was in use: it had {was} bytes, now {is}", path.display())
            hint ("let whatever writes it finish, then start again"),
        CutShort { path: PathBuf, packing: &'static str, offset: u64 } =>
            ("{}: the {packing} data ends early, behind {offset} unpacked bytes", path.display())
            hint ("the file was not written or copied to its end; make it again"),
        Unpack { path: PathBuf, packing: &'static str, offset: u64, reason: String } =>
            ("{}: cannot unpack the {packing} data behind {offset} unpacked bytes: {reason}", path.display())
            hint ("the file is damaged, or a part of it needs a window above 128 MiB or one larger than its beginning does; pack it again as one"),
        NoRowsInJson { path: PathBuf, reason: String } =>
            ("{}: no rows found: {reason}", path.display())
            hint ("a .json file holds a list of objects, [{{…}}, …], or one object per line"),
        NotAFile { path: PathBuf, what: &'static str } =>
            ("{} {what}, which can be read only once, and data is read more than once", path.display())
            hint ("write it into a file and name that"),
        SeveralSplits { path: PathBuf, splits: String, example: String } =>
            ("{} holds the splits {splits}", path.display())
            hint ("choose one: {example}"),
        BadArrow { path: PathBuf, reason: String } =>
            ("{}: not a readable Arrow file: {reason}", path.display())
            hint ("write it again, or convert it to Parquet"),
        BadParquet { path: PathBuf, reason: String } =>
            ("{}: not a readable Parquet file: {reason}", path.display())
            hint ("write it again or convert it to JSONL"),
        NoSuchPosition { name: String, unit: u32 } =>
            ("{name} has no part {unit} to read on from")
            hint ("the files are not those the position was taken from; start again"),
        UnknownColumn { known: String, allowed: String } =>
            ("data.columns names `{known}`, which no format knows")
            hint ("write known column: your column; known are {allowed}"),
        ColumnTwice { known: String } =>
            ("data.columns names `{known}` twice")
            hint ("a column can be read from one other only"),
        NoSuchColumn { files: String, known: String, own: String, columns: String } =>
            ("data.columns reads `{known}` from `{own}`, which none of the first rows of {files} has; they have {columns}")
            hint ("correct the name; it is written as in the file, capitals included"),
        Empty { files: String } =>
            ("no rows in {files}")
            hint ("a dataset needs at least one row"),

        // Rows.
        NotUtf8 { at: Place } =>
            ("{at}: the row is not valid UTF-8")
            hint ("convert the file, for example with `iconv -t UTF-8`"),
        BadJson { at: Place, reason: String } =>
            ("{at}: not valid JSON: {reason}")
            hint ("each row must be one complete JSON object"),
        HalfWritten { at: Place, reason: String } =>
            ("{at}: the file ends within the row: not valid JSON: {reason}")
            hint ("whatever wrote it did not finish; remove the row or write the file again"),
        NotAnObject { at: Place, found: &'static str } =>
            ("{at}: expected a JSON object, found {found}")
            hint ("write each row as {{\"text\": …}} or another accepted shape"),
        BadTable { at: Place, reason: String } =>
            ("{at}: not a valid row of the table: {reason}")
            hint ("each row has as many fields as the header; quote fields that hold the separator, a quote or a line break"),
        BadHeader { path: PathBuf, reason: String, separator: &'static str } =>
            ("{}: the header is not usable: {reason}", path.display())
            hint ("the first line names the columns, each once, separated by {separator}"),
        RowTooLarge { at: Place, bytes: u64, max: usize } =>
            ("{at}: the row has {bytes} bytes, more than {max}")
            hint ("split it, or check that the file has line breaks"),
        BadRowGroup { at: Place, rows: u64, reason: String } =>
            ("{at}: the row group is damaged and its last {rows} rows are lost: {reason}")
            hint ("write the file again or convert it to JSONL"),
        MissingColumn { at: Place, wanted: &'static str, columns: String, accepted: &'static str } =>
            ("{at}: no column for {wanted}; the row has {columns}")
            hint ("accepted are {accepted}"),
        WrongType { at: Place, column: String, found: &'static str, expected: &'static str } =>
            ("{at}: `{column}` is {found}, expected {expected}")
            hint ("correct the row or remove it"),
        UnknownSpeaker { at: Place, place: String, speaker: String } =>
            ("{at}: `{place}` is {speaker:?}, which is no known speaker")
            hint ("known are human, gpt, system, tool and their usual synonyms; or write role and content"),
        NotATextPart { at: Place, place: String, kind: String } =>
            ("{at}: `{place}` is a part of type {kind:?}; only text can be learnt from")
            hint ("leave other parts out, or remove the row"),
        NoAnswer { at: Place } =>
            ("{at}: the conversation has no assistant turn to learn from")
            hint ("add an answer (one of weight 0 is not learnt) or remove the row"),
        NotText { at: Place, found: &'static str } =>
            ("{at}: task `pretrain` needs a `text` column and the rows are {found}")
            hint ("use `task: sft`, or give the column `text`"),
        NotPairs { at: Place, found: &'static str, accepted: &'static str } =>
            ("{at}: the task compares two answers and the rows are {found}")
            hint ("accepted are {accepted}"),
        NotSourceTarget { at: Place, found: &'static str, accepted: &'static str } =>
            ("{at}: a source and a target are needed and the rows are {found}")
            hint ("accepted are {accepted}"),
        NoCandidates { at: Place, found: &'static str } =>
            ("{at}: candidates are ranked inside conversations and the rows are {found}")
            hint ("give `messages` or `conversations`, with the candidates' relevance in `auxiliary_labels`"),
        BadCandidates { at: Place, reason: String } =>
            ("{at}: {reason}")
            hint ("`auxiliary_labels` is a list with a number for each turn of the assistant (null for those that are no candidate), or a list of {{\"text\", \"relevance\"}} in the order of the conversation"),
        BadMargin { at: Place, reason: String } =>
            ("{at}: {reason}")
            hint ("a margin is a number of at least 0; correct the row, or set `reward.margin: false`"),
        NoResponse { at: Place } =>
            ("{at}: the rows have a prompt and no response")
            hint ("add a column `response`"),
        NeedsTemplate { at: Place } =>
            ("{at}: the row is a conversation (it has more than a prompt and a response as texts), and the tokenizer has no chat template to write it with")
            hint ("choose one with data.template, for example chatml"),
        NotRendered { at: Place, column: &'static str, reason: &'static str } =>
            ("{at}: `{column}` cannot be learnt from: {reason}")
            hint ("use a template that writes it (data.template), or remove the row"),
        BadLabel { at: Place, reason: String } =>
            ("{at}: {reason}")
            hint ("a class is an integer from 0, or a name where the classes are named; correct the row or remove it"),
        OnlyPairs { at: Place } =>
            ("{at}: the rows are pairs of answers, which this task has no use for")
            hint ("use `task: reward`, `dpo` or `orpo`, or give the columns of another shape"),
        NoPairsLeft { rows: u64, identical: u64, max_length: usize } =>
            ("none of the {rows} pairs is left: {identical} have two equal sides, the others' answers are longer than max_length = {max_length}")
            hint ("raise data.max_length, or check the columns"),
        TooLong { at: Place, length: usize, max_length: usize } =>
            ("{at}: {length} tokens, more than max_length = {max_length}")
            hint ("raise data.max_length, or set data.overlong to `truncate` or `skip`"),
        NothingLeft { rows: u64, max_length: usize } =>
            ("nothing to learn is left of the {rows} rows: each is empty, or has no answer within max_length = {max_length}")
            hint ("raise data.max_length"),
        AllHeldOut { rows: u64 } =>
            ("no row is left to train on: `data.eval_split` holds out all of the {rows}")
            hint ("lower data.eval_split, or give the evaluation rows in a file of their own with data.eval"),
        MaxLength { max_length: usize } =>
            ("max_length = {max_length} leaves no token to predict")
            hint ("set data.max_length to 2 or more"),

        // Templates.
        BadTemplate { origin: String, reason: String } =>
            ("the chat template of {origin} cannot be compiled: {reason}")
            hint ("correct chat_template in the tokenizer's folder"),
        UnknownTemplate { name: String, known: String } =>
            ("unknown chat template `{name}`")
            hint ("known are {known}; or give the path of a .jinja file"),
        NoEndOfTurn { name: String, end: String } =>
            ("template {name} ends turns with {end}, which is no token of this tokenizer, so the model could not learn to stop")
            hint ("choose another template, or one of the tokenizer's own family"),
        Render { at: Place, reason: String } =>
            ("{at}: the chat template refused the conversation: {reason}")
            hint ("correct the row or the template"),
        NotIncremental { at: Place, turn: usize } =>
            ("{at}: the chat template rewrites earlier text when turn {turn} is added, so prompt and answer cannot be separated")
            hint ("give each answer a row of its own, or use a template that only appends"),

        // Tokenizer.
        TokenizerMissing { path: PathBuf } =>
            ("{} is missing", path.display())
            hint ("a model's folder holds its tokenizer: download it together with the weights, or set data.tokenizer to a folder that has one"),
        TokenizerCorrupt { origin: String, reason: String } =>
            ("{origin} is not usable as a tokenizer: {reason}")
            hint ("download the file again"),
        Tokenise { at: Place, reason: String } =>
            ("{at}: cannot tokenise: {reason}")
            hint ("correct the row or remove it"),
        Codec { reason: String } =>
            ("cannot encode or decode: {reason}")
            hint ("check that tokenizer.json belongs to this model"),
        NoEos { origin: String } =>
            ("the tokenizer of {origin} names no end-of-sequence token, so texts and answers could not end")
            hint ("add \"eos_token\" to tokenizer_config.json"),

        Vocabulary { reason: String } =>
            ("cannot train a tokenizer: {reason}")
            hint ("give more text, or ask for another size or kind of vocabulary"),
        Write { path: PathBuf, source: std::io::Error } =>
            ("cannot write {}: {source}", path.display())
            hint ("check the path and the space on the disk"),

        // Dataset.
        TooManyBadRows { bad: u64, rows: u64, allowed_percent: f64, named: String } =>
            ("{bad} of {rows} rows cannot be used, more than the {allowed_percent} % that are allowed:\n  {named}")
            hint ("correct or remove them, or allow a larger share with data.bad_rows"),
        Weight { source_number: usize, weight: f64, reason: &'static str } =>
            ("the weight {weight} of source {source_number} {reason}")
            hint ("give every source a weight of similar size, or none at all"),
        SomeWeights { sources: usize, weighted: usize } =>
            ("of {sources} sources, {weighted} have a weight")
            hint ("give a weight to all of them or to none"),
        StreamBuffer { bytes: u64, needed: u64, max_length: usize } =>
            ("a stream buffer of {} is too small for sequences of up to {max_length} tokens", kib(*bytes))
            hint ("set data.buffer to {} or more, or lower data.max_length", kib(*needed)),
        MemoryFull { bytes: u64, share_percent: f64, limit: u64 } =>
            ("the tokenised data does not fit into memory: {} after {share_percent:.0} % of the rows, and {} are available", mib(*bytes), mib(*limit))
            hint ("use data.mode: cached or streaming, or raise memory.host"),
        Thread { source: std::io::Error } =>
            ("cannot start a thread: {source}")
            hint ("check the limits on processes and memory (`ulimit -a`)"),
        Malformed =>
            ("the data could not be read as it was planned")
            hint ("this is a defect of the program; please report it"),

        // Cache.
        CacheWrite { path: PathBuf, source: std::io::Error } =>
            ("cannot write the tokenised data to {}: {source}", path.display())
            hint ("free some space, or choose another folder for it"),
        CacheRead { path: PathBuf, source: std::io::Error } =>
            ("cannot read the tokenised data in {}: {source}", path.display())
            hint ("check the disk, or remove the file to have it made again"),
        CacheDamaged { path: PathBuf, what: &'static str, moved: bool } =>
            ("the tokenised data in {} is damaged: {what}", path.display())
            hint ("{}", if *moved { "the file was put aside; start again to have it made again" } else { "remove the file to have it made again" }),
        NoSpace { path: PathBuf, needed: u64, free: u64 } =>
            ("the tokenised data would need {needed} bytes at {}, and {free} are free", path.display())
            hint ("free some space, choose another folder for it, or stream the data instead"),

        // Feed.
        OtherCursor =>
            ("the data or its order is not what the run was stopped with")
            hint ("go on with the same rows, tokenizer, template, seed, weights and stream buffer, or start a new run"),
        Feed { reason: String } =>
            ("the data cannot be fed: {reason}")
            hint ("check the batch and the number of ranks"),
        Stopped =>
            ("the data was stopped"),

        // Packing.
        DoesNotFit { index: usize, length: usize, capacity: usize } =>
            ("sequence {index} of the update has {length} tokens, a micro-batch holds {capacity}")
            hint ("plan with micro-batches of at least {length} tokens"),
        TooManyTokens { sequences: u64, max_length: usize } =>
            ("{sequences} sequences of up to {max_length} tokens are more than one update can number (2^32)")
            hint ("lower batch.sequences or data.max_length"),
    }
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
                | Self::BadCandidates { .. }
                | Self::BadMargin { .. }
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
