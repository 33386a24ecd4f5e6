//! Sources with what was found out about them: opened once, shared by the datasets made from them.

use std::collections::{BTreeSet, HashSet, VecDeque};

use super::build::pool;
use super::options::{Options, Weighted};
use crate::error::DataError;
use crate::format::{ColumnNames, RowFormat};
use crate::read::{FileFormat, Files, OpenedSource, Row, Source};
use crate::store::Records;
use crate::tokenize::{Producer, Tokenizer};
use crate::visible::visible;

/// Rows looked at to find out what the rows are: a bad first row must not decide.
const ROWS_TO_DETECT: usize = 16;
/// Groups tokenised to estimate the size of the rest.
const SAMPLE_GROUPS: u64 = 4096;
/// The sample is held until the dataset is made.
const SAMPLE_BYTES: usize = 8 << 20;

/// Opened sources whose rows are of a known format. Their beginning, once tokenised to choose a storage mode, goes into the
/// dataset that is made of them.
pub struct Sources {
    pub(super) opened: Vec<OpenedSource>,
    pub(super) weights: Option<Vec<f64>>,
}

impl Sources {
    /// Finds out what each source's rows are; weights are for all or for none.
    pub fn open(sources: Vec<Weighted>, options: &Options) -> Result<Self, DataError> {
        check_lengths(options)?;
        let weights: Vec<f64> = sources.iter().filter_map(|source| source.weight).collect();
        if sources.is_empty() {
            return Err(DataError::Empty { files: "no source".to_owned() });
        }
        if !weights.is_empty() && weights.len() != sources.len() {
            return Err(DataError::SomeWeights { sources: sources.len(), weighted: weights.len() });
        }
        let opened = sources.into_iter().map(|weighted| open(weighted.source, options));
        let opened = opened.collect::<Result<Vec<OpenedSource>, DataError>>()?;
        Ok(Self { opened, weights: (!weights.is_empty()).then_some(weights) })
    }

    /// The same files for held-out rows: one pass over all of them, whatever the weights. The sources stay apart, so that
    /// the rows held out are those that training leaves out.
    pub fn held_out(&self) -> Self {
        Self { opened: self.opened.iter().map(OpenedSource::share).collect(), weights: None }
    }

    /// Of each source its name, what its rows are, and in words from which columns; of a source whose files are of several
    /// formats, the first file of each.
    pub fn formats(&self) -> impl Iterator<Item = (String, RowFormat, &str)> {
        let formats = self.opened.iter().flat_map(|opened| &opened.formats);
        formats.map(|of_file| (of_file.name.clone(), of_file.format, of_file.explained.as_str()))
    }

    /// Whether some rows are conversations, which a chat template must write.
    pub fn has_conversations(&self) -> bool {
        self.opened.iter().flat_map(|opened| &opened.formats).any(|of_file| of_file.conversation)
    }

    /// What the tokenised data takes, judged by a sample of its beginning.
    pub(super) fn estimate(&mut self, tokenizer: &Tokenizer, options: &Options) -> Result<u64, DataError> {
        let mut total = 0;
        for opened in &mut self.opened {
            total += sample(opened, tokenizer, options)?;
        }
        Ok(total)
    }
}

/// What a dataset can be made of.
pub trait IntoSources {
    fn into_sources(self, options: &Options) -> Result<Sources, DataError>;
}

impl IntoSources for Sources {
    fn into_sources(self, _: &Options) -> Result<Sources, DataError> {
        Ok(self)
    }
}

impl IntoSources for Vec<Weighted> {
    fn into_sources(self, options: &Options) -> Result<Sources, DataError> {
        Sources::open(self, options)
    }
}

/// Each file is looked at by itself: a list may hold files of several formats.
fn open(source: Source, options: &Options) -> Result<OpenedSource, DataError> {
    let source = source.with_columns(&options.columns)?;
    let mut formats: Vec<FileFormat> = Vec::new();
    let mut format_of: Vec<Option<u32>> = Vec::new();
    let (mut problem, mut seen) = (None, Seen::default());
    for (file, path) in source.files().enumerate() {
        let first: FirstRows = source.all_of_file(file).take(ROWS_TO_DETECT).collect();
        first.iter().flatten().for_each(|row| seen.add(row, &options.columns));
        let found = if first.is_empty() { None } else { Some(detect_format(first, options)) };
        format_of.push(match found {
            None => None,
            Some(Ok((first, format))) => {
                let known = formats.iter().position(|other| other.format == format);
                if known.is_none() {
                    let usable = first.iter().flatten().find(|row| format.read_any(row).is_ok());
                    let explained = usable.map_or(format.name().to_owned(), |row| format.explain(row));
                    let conversation = usable.is_some_and(|row| format.is_conversation(row));
                    let name = path.display().to_string();
                    formats.push(FileFormat { format, conversation, explained, name });
                }
                Some(known.unwrap_or(formats.len() - 1) as u32)
            }
            // Its rows are bad ones, if some other file says of what format they should be.
            Some(Err(error)) if error.is_bad_row() => {
                problem = problem.or(Some(error));
                None
            }
            Some(Err(error)) => return Err(error),
        });
    }
    seen.check(&options.columns, &source)?;
    match (&mut formats[..], problem) {
        ([], Some(problem)) => return Err(problem),
        ([], None) => return Err(DataError::Empty { files: source.name() }),
        ([only], _) => only.name = source.name(),
        _ => {}
    }
    let format_of = format_of.into_iter().map(Option::unwrap_or_default).collect();
    Ok(OpenedSource { source, formats, format_of, sample: None })
}

/// Which columns the first rows have.
#[derive(Default)]
struct Seen {
    mapped: HashSet<String>,
    columns: BTreeSet<String>,
}

impl Seen {
    fn add(&mut self, row: &Row, names: &ColumnNames) {
        let mapped = names.iter().filter(|(known, _)| row.columns.contains_key(*known));
        self.mapped.extend(mapped.map(|(known, _)| known.to_owned()));
        if self.columns.is_empty() {
            // As the user calls them.
            let own = |name: &str| {
                names.iter().find(|(known, _)| *known == name).map_or(name.to_owned(), |(_, own)| own.to_owned())
            };
            self.columns.extend(row.columns.keys().map(|name| own(name)));
        }
    }

    /// A name that no row has is a mistake, and one that would cost the column silently.
    fn check(&self, names: &ColumnNames, source: &Source) -> Result<(), DataError> {
        let Some((known, own)) = names.iter().find(|(known, _)| !self.mapped.contains(*known)) else { return Ok(()) };
        if self.columns.is_empty() {
            return Ok(());
        }
        let columns: Vec<String> = self.columns.iter().map(|name| format!("`{}`", visible(name))).collect();
        let (known, own, columns) = (known.to_owned(), own.to_owned(), columns.join(", "));
        Err(DataError::NoSuchColumn { files: source.name(), known, own, columns })
    }
}

/// Tokenises the beginning of a source, if that has not been done. Returns what all of it will take.
pub(super) fn sample(opened: &mut OpenedSource, tokenizer: &Tokenizer, options: &Options) -> Result<u64, DataError> {
    let sampled = match opened.sample.take() {
        Some(sampled) => sampled,
        None => {
            let source = std::slice::from_ref(&*opened);
            let encoders = opened.encoders(tokenizer, options)?;
            let pool = pool(options.workers)?;
            let files = Files::in_order(source, options.hold_out);
            let mut producer = Producer::new(files, encoders, tokenizer, options, &pool);
            let (mut records, mut share) = (Records::default(), 1.0);
            let mut groups = 0;
            while groups < SAMPLE_GROUPS && records.size() < SAMPLE_BYTES {
                let Some(group) = producer.next_group()? else {
                    share = 1.0;
                    break;
                };
                records.push(group);
                groups += 1;
                share = producer.used_share();
            }
            Box::new(producer.pause(records, share))
        }
    };
    let bytes = sampled.records.size() as f64 / sampled.share.clamp(1e-9, 1.0);
    opened.sample = Some(sampled);
    Ok(bytes as u64)
}

pub(super) fn check_lengths(options: &Options) -> Result<(), DataError> {
    match options.max_lengths().iter().find(|length| **length < 2) {
        Some(&max_length) => Err(DataError::MaxLength { max_length }),
        None => Ok(()),
    }
}

pub(super) type FirstRows = VecDeque<Result<Row, DataError>>;

/// The format of the first row that tells; if none does, what was wrong with the first.
pub(super) fn detect_format(mut first: FirstRows, options: &Options) -> Result<(FirstRows, RowFormat), DataError> {
    let mut problem = None;
    for row in first.iter().flatten() {
        match options.content.row_format(options.format, row) {
            Ok(format) => return Ok((first, format)),
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    // No row could even be read, or none is of a known format.
    let unread = first.iter().position(Result::is_err).and_then(|index| first.remove(index));
    match (problem, unread) {
        (Some(problem), _) => Err(problem),
        (None, Some(Err(error))) => Err(error),
        _ => Err(DataError::Malformed),
    }
}
