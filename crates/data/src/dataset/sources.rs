//! Sources with what was found out about them: opened once, shared by the datasets made from them.

use std::collections::VecDeque;

use super::build::pool;
use super::options::{Options, Weighted};
use crate::error::DataError;
use crate::format::RowFormat;
use crate::read::{Files, OpenedSource, Row, Source};
use crate::store::Records;
use crate::tokenize::{Encoder, Producer, Tokenizer};

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

    /// Of each source its name, what its rows are, and in words from which columns.
    pub fn formats(&self) -> impl Iterator<Item = (String, RowFormat, &str)> {
        self.opened.iter().map(|opened| (opened.source.name(), opened.format, opened.explained.as_str()))
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

fn open(source: Source, options: &Options) -> Result<OpenedSource, DataError> {
    let first: VecDeque<Result<Row, DataError>> = source.all().take(ROWS_TO_DETECT).collect();
    if first.is_empty() {
        return Err(DataError::Empty { files: source.name() });
    }
    let (first, format) = detect_format(first, options)?;
    let usable = first.iter().flatten().find(|row| format.read_any(row).is_ok());
    let explained = usable.map_or(format.name().to_owned(), |row| format.explain(row));
    Ok(OpenedSource { source, format, explained, sample: None })
}

/// Tokenises the beginning of a source, if that has not been done. Returns what all of it will take.
pub(super) fn sample(opened: &mut OpenedSource, tokenizer: &Tokenizer, options: &Options) -> Result<u64, DataError> {
    let sampled = match opened.sample.take() {
        Some(sampled) => sampled,
        None => {
            let source = std::slice::from_ref(&*opened);
            let encoders = vec![Encoder::new(tokenizer, opened.format, options)?];
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
