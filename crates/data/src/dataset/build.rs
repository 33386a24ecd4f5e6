//! Making datasets.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rayon::ThreadPool;
use serde_json::Value;

use super::options::{Content, Options, Progress, Weighted};
use super::{Dataset, Observer, Storage, estimate};
use crate::error::DataError;
use crate::format::{Format, PAIRS_ACCEPT, RowFormat, detects_pairs};
use crate::order::Stored;
use crate::order::mix;
use crate::read::{Files, Listed, OpenedSource, RowReader};
use crate::read::{Row, Source};
use crate::store::{Group, Records, Width};
use crate::store::{Store, Totals};
use crate::store::{StreamSource, chunk_bytes};
use crate::store::{build_or_open, file_name, key};
use crate::tokenize::Encoder;
use crate::tokenize::Producer;
use crate::tokenize::Tokenizer;
use crate::tokenize::{Counts, Summary};

/// Rows looked at to find out what the rows are: a bad first row must not decide.
const ROWS_TO_TELL: usize = 16;
/// Groups between two looks at progress and disk.
const GROUPS_PER_REPORT: u64 = 256;

pub(super) fn from_rows(
    rows: impl Iterator<Item = Result<Row, DataError>> + Send,
    origin: &str,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Dataset, DataError> {
    check(options)?;
    let mut rows = rows.fuse();
    let first: Vec<Result<Row, DataError>> = rows.by_ref().take(ROWS_TO_TELL).collect();
    if first.is_empty() {
        return Err(DataError::Empty { files: origin.to_owned() });
    }
    let (first, format) = detect_format(first, options)?;
    let pool = pool(options.workers)?;
    let reader = Listed::new(first.into_iter().chain(rows));
    let mut producer = Producer::new(reader, vec![Encoder::new(tokenizer, format)?], tokenizer, options, &pool);
    let mut records = Records::default();
    while let Some(group) = producer.next_group()? {
        records.push(group);
    }
    records.shrink();
    let counts = producer.tally.counts;
    let totals = Totals::of(&records);
    finish(vec![Store::Memory(Arc::new(records))], None, Summary { format, counts }, totals, tokenizer, options)
}

pub(super) fn in_memory(
    sources: Vec<Weighted>,
    tokenizer: &Tokenizer,
    options: &Options,
    observe: Observer<'_>,
) -> Result<Dataset, DataError> {
    stored(sources, tokenizer, options, observe, |opened, pool, watch| {
        let mut records = Records::default();
        let counts = tokenise(opened, tokenizer, options, pool, watch, &mut |group, _| {
            records.push(group);
            Ok(())
        })?;
        records.shrink();
        Ok((Store::Memory(Arc::new(records)), counts))
    })
}

pub(super) fn cached(
    sources: Vec<Weighted>,
    tokenizer: &Tokenizer,
    options: &Options,
    folder: &Path,
    observe: Observer<'_>,
) -> Result<Dataset, DataError> {
    stored(sources, tokenizer, options, observe, |opened, pool, watch| {
        let key = key(opened, tokenizer, options);
        let expected = || estimate(std::slice::from_ref(opened), tokenizer, options);
        let cache = build_or_open(&folder.join(file_name(key)), key, &expected, &mut |writer| {
            tokenise(opened, tokenizer, options, pool, watch, &mut |group, share| {
                writer.push(group)?;
                writer.check_disk(share)
            })
        })?;
        let counts = cache.header.counts.clone();
        Ok((Store::Cached(Arc::new(cache)), counts))
    })
}

/// A dataset of opened that are kept whole, each in the store that `store` makes of it.
fn stored(
    sources: Vec<Weighted>,
    tokenizer: &Tokenizer,
    options: &Options,
    observe: Observer<'_>,
    mut store: impl FnMut(&OpenedSource, &ThreadPool, &mut Watch) -> Result<(Store, Counts), DataError>,
) -> Result<Dataset, DataError> {
    let (opened, weights) = open_sources(sources, options)?;
    let pool = pool(options.workers)?;
    let total = opened.iter().map(|opened| opened.source.bytes()).sum();
    let mut watch = Watch::new(total, observe);
    let (mut stores, mut counts, mut totals) = (Vec::new(), Counts::default(), Totals::default());
    for opened in &opened {
        let (made, counted) = store(opened, &pool, &mut watch)?;
        counts.add(&counted);
        totals.join(&made.totals());
        stores.push(made);
    }
    let summary = Summary { format: opened[0].format, counts };
    finish(stores, weights, summary, totals, tokenizer, options)
}

pub(super) fn streamed(
    sources: Vec<Weighted>,
    tokenizer: Arc<Tokenizer>,
    options: &Options,
    buffer_bytes: u64,
) -> Result<Dataset, DataError> {
    let (opened, weights) = open_sources(sources, options)?;
    let width = Width::of(tokenizer.vocab_size());
    let stream_count = if weights.is_some() { opened.len() as u64 } else { 1 };
    let chunk_bytes = chunk_bytes(buffer_bytes / stream_count, options, width)?;
    let keys = opened.iter().map(|opened| key(opened, &tokenizer, options));
    let identity = keys.fold(mix(chunk_bytes), |hash, key| mix(hash ^ (key as u64) ^ ((key >> 64) as u64)));
    let format = opened[0].format;
    let pool = Arc::new(pool(options.workers)?);
    let stream_source = |opened: Vec<OpenedSource>| {
        let (tokenizer, pool) = (tokenizer.clone(), pool.clone());
        Arc::new(StreamSource { opened, tokenizer, options: *options, pool, chunk_bytes, bad: AtomicU64::new(0) })
    };
    let stream_sources: Vec<Arc<StreamSource>> = match &weights {
        Some(_) => opened.into_iter().map(|opened| stream_source(vec![opened])).collect(),
        None => vec![stream_source(opened)],
    };
    Ok(Dataset {
        storage: Storage::Streamed { stream_sources, weights, identity },
        summary: Summary { format, counts: Counts::default() },
        totals: None,
        group: options.content.group(),
        max_length: options.max_length,
        width,
    })
}

/// Tokenises everything once and keeps only the sums.
pub(super) fn count(
    stream_sources: &[Arc<StreamSource>],
    observe: Observer<'_>,
) -> Result<(Totals, Counts), DataError> {
    let total =
        stream_sources.iter().flat_map(|stream_source| &stream_source.opened).map(|opened| opened.source.bytes()).sum();
    let mut watch = Watch::new(total, observe);
    let (mut totals, mut counts) = (Totals::default(), Counts::default());
    for stream_source in stream_sources {
        let made = tokenise_all(
            &stream_source.opened,
            &stream_source.tokenizer,
            &stream_source.options,
            &stream_source.pool,
            &mut watch,
            &mut |group, _| {
                group.entries.iter().for_each(|entry| totals.add(entry));
                Ok(())
            },
        )?;
        counts.add(&made);
    }
    if let Some(stream_source) = stream_sources.first() {
        check_left(&totals, &counts, &stream_source.options)?;
    }
    Ok((totals, counts))
}

fn finish(
    stores: Vec<Store>,
    weights: Option<Vec<f64>>,
    summary: Summary,
    totals: Totals,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Dataset, DataError> {
    check_left(&totals, &summary, options)?;
    if weights.is_some() {
        // A source of a mixture that gives nothing cannot have a share.
        stores.iter().try_for_each(|store| check_left(&store.totals(), &summary, options))?;
    }
    let width = Width::of(tokenizer.vocab_size());
    let group = options.content.group();
    let storage = Storage::Stored(Arc::new(Stored { stores, weights, group, width }));
    Ok(Dataset { storage, summary, totals: Some(totals), group, max_length: options.max_length, width })
}

fn check_left(totals: &Totals, counts: &Counts, options: &Options) -> Result<(), DataError> {
    let Counts { rows, identical, .. } = *counts;
    let max_length = options.max_length;
    match (totals.sequences, options.content) {
        (0, Content::Pairs) => Err(DataError::NoPairsLeft { rows, identical, max_length }),
        (0, _) => Err(DataError::NothingLeft { rows, max_length }),
        _ => Ok(()),
    }
}

fn check(options: &Options) -> Result<(), DataError> {
    let max_length = options.max_length;
    if max_length < 2 { Err(DataError::MaxLength { max_length }) } else { Ok(()) }
}

pub(crate) fn pool(workers: usize) -> Result<ThreadPool, DataError> {
    let builder = rayon::ThreadPoolBuilder::new().num_threads(workers.max(1)).thread_name(|i| format!("tokenise {i}"));
    builder.build().map_err(|error| DataError::Thread { source: std::io::Error::other(error) })
}

/// Finds out what each source's rows are; weights are for all or for none.
pub(crate) fn open_sources(
    sources: Vec<Weighted>,
    options: &Options,
) -> Result<(Vec<OpenedSource>, Option<Vec<f64>>), DataError> {
    check(options)?;
    let weights: Vec<f64> = sources.iter().filter_map(|source| source.weight).collect();
    if sources.is_empty() {
        return Err(DataError::Empty { files: "no source".to_owned() });
    }
    if !weights.is_empty() && weights.len() != sources.len() {
        return Err(DataError::SomeWeights { sources: sources.len(), weighted: weights.len() });
    }
    let opened = |Weighted { source, .. }| {
        let format = format_of(&source, options)?;
        Ok(OpenedSource { source, format })
    };
    let opened = sources.into_iter().map(opened).collect::<Result<Vec<OpenedSource>, DataError>>()?;
    Ok((opened, (!weights.is_empty()).then_some(weights)))
}

/// What the rows of a source are, told from the first of them.
pub fn format_of(source: &Source, options: &Options) -> Result<RowFormat, DataError> {
    let first: Vec<Result<Row, DataError>> = source.all().take(ROWS_TO_TELL).collect();
    if first.is_empty() {
        return Err(DataError::Empty { files: source.name() });
    }
    detect_format(first, options).map(|(_, format)| format)
}

type FirstRows = Vec<Result<Row, DataError>>;

/// The format of the first row that tells; if none does, what was wrong with the first.
fn detect_format(mut first: FirstRows, options: &Options) -> Result<(FirstRows, RowFormat), DataError> {
    let told: Vec<Result<RowFormat, DataError>> =
        first.iter().flatten().map(|row| resolve_format(options, row)).take_while_ok().collect();
    let mut problem = None;
    for format in told {
        match format {
            Ok(format) => return Ok((first, format)),
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    // No row could even be read, or none is of a known format.
    let unread = first.iter().position(Result::is_err).map(|index| first.swap_remove(index));
    match (problem, unread) {
        (Some(problem), _) => Err(problem),
        (None, Some(Err(error))) => Err(error),
        _ => Err(DataError::Malformed),
    }
}

/// Results up to and including the first that is `Ok`.
trait TakeWhileOk: Iterator {
    fn take_while_ok(self) -> impl Iterator<Item = Self::Item>;
}

impl<T, E, I: Iterator<Item = Result<T, E>>> TakeWhileOk for I {
    fn take_while_ok(self) -> impl Iterator<Item = Result<T, E>> {
        let mut found = false;
        self.take_while(move |result| !std::mem::replace(&mut found, result.is_ok()))
    }
}

fn resolve_format(options: &Options, first: &Row) -> Result<RowFormat, DataError> {
    // Tables of pairs often carry a conversation for other tasks beside them.
    if options.content == Content::Pairs && options.format == Format::Auto && detects_pairs(first) {
        return Ok(RowFormat::Pairs);
    }
    let format = options.format.resolve(first)?;
    let has_text = first.columns.get("text").is_some_and(Value::is_string);
    match (options.content, format) {
        (Content::Pairs, RowFormat::Pairs) => Ok(format),
        (Content::Pairs, other) => {
            Err(DataError::NotPairs { at: first.at.clone(), found: other.name(), accepted: PAIRS_ACCEPT })
        }
        (_, RowFormat::Pairs) => Err(DataError::OnlyPairs { at: first.at.clone() }),
        (Content::Answers, format) | (Content::Text, format @ RowFormat::Text) => Ok(format),
        // `auto` prefers the richer format, but here only the text is of use.
        (Content::Text, _) if options.format == Format::Auto && has_text => Ok(RowFormat::Text),
        (Content::Text, other) => Err(DataError::NotText { at: first.at.clone(), found: other.name() }),
    }
}

/// Adds up the progress of several sources.
struct Watch<'a> {
    observe: Observer<'a>,
    /// Of the sources that are finished.
    rows: u64,
    bytes: u64,
    total: u64,
}

impl<'a> Watch<'a> {
    fn new(total: u64, observe: Observer<'a>) -> Self {
        Self { observe, rows: 0, bytes: 0, total }
    }

    fn tell(&mut self, rows: u64, bytes: u64) {
        let bytes_read = (self.bytes + bytes).min(self.total);
        (self.observe)(&Progress { rows: self.rows + rows, bytes_read, bytes_total: self.total });
    }
}

/// Takes a group and the share of the data that has been read.
type Take<'a> = &'a mut dyn FnMut(&Group, f64) -> Result<(), DataError>;

fn tokenise(
    opened: &OpenedSource,
    tokenizer: &Tokenizer,
    options: &Options,
    pool: &ThreadPool,
    watch: &mut Watch<'_>,
    take: Take<'_>,
) -> Result<Counts, DataError> {
    tokenise_all(std::slice::from_ref(opened), tokenizer, options, pool, watch, take)
}

fn tokenise_all(
    opened: &[OpenedSource],
    tokenizer: &Tokenizer,
    options: &Options,
    pool: &ThreadPool,
    watch: &mut Watch<'_>,
    take: Take<'_>,
) -> Result<Counts, DataError> {
    let encoders = opened.iter().map(|opened| Encoder::new(tokenizer, opened.format)).collect::<Result<_, _>>()?;
    let mut producer = Producer::new(Files::in_order(opened, options.hold_out), encoders, tokenizer, options, pool);
    let mut groups = 0u64;
    loop {
        let share = producer.reader().read_share();
        let Some(group) = producer.next_group()? else { break };
        take(group, share)?;
        groups += 1;
        if groups.is_multiple_of(GROUPS_PER_REPORT) {
            watch.tell(producer.tally.counts.rows, producer.reader().bytes_read());
        }
    }
    let bytes = opened.iter().map(|opened| opened.source.bytes()).sum();
    watch.tell(producer.tally.counts.rows, bytes);
    watch.rows += producer.tally.counts.rows;
    watch.bytes += bytes;
    Ok(producer.tally.counts)
}
