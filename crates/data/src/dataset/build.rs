//! Making datasets.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rayon::ThreadPool;
use serde_json::Value;

use super::options::{Options, Progress, Task, Weighted};
use super::{Dataset, Kept, Observer};
use crate::cache::{build_or_open, file_name, key};
use crate::choose::estimate;
use crate::encode::Encoder;
use crate::error::DataError;
use crate::order::mix;
use crate::pairs;
use crate::pump::Pump;
use crate::read::{Row, Source};
use crate::record::{Group, Records, Width};
use crate::shape::{Format, Shape};
use crate::store::{Extent, Store};
use crate::stream::{Lane, block_bytes};
use crate::supply::{Files, Listed, Part, Supply};
use crate::tally::{Counts, Summary};
use crate::tokenizer::Tokenizer;
use crate::walk::Stored;

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
    let (first, shape) = tell_shape(first, options)?;
    let pool = pool(options.workers)?;
    let supply = Listed::new(first.into_iter().chain(rows));
    let mut pump = Pump::new(supply, vec![Encoder::new(tokenizer, shape)?], tokenizer, options, &pool);
    let mut records = Records::default();
    while let Some(group) = pump.next_group()? {
        records.push(group);
    }
    records.shrink();
    let counts = pump.tally.counts;
    let extent = Extent::of(&records);
    finish(vec![Store::Memory(Arc::new(records))], None, Summary { shape, counts }, extent, tokenizer, options)
}

pub(super) fn in_memory(
    sources: Vec<Weighted>,
    tokenizer: &Tokenizer,
    options: &Options,
    observe: Observer<'_>,
) -> Result<Dataset, DataError> {
    stored(sources, tokenizer, options, observe, |part, pool, watch| {
        let mut records = Records::default();
        let counts = tokenise(part, tokenizer, options, pool, watch, &mut |group, _| {
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
    stored(sources, tokenizer, options, observe, |part, pool, watch| {
        let key = key(part, tokenizer, options);
        let expected = || estimate(std::slice::from_ref(part), tokenizer, options);
        let cache = build_or_open(&folder.join(file_name(key)), key, &expected, &mut |writer| {
            tokenise(part, tokenizer, options, pool, watch, &mut |group, share| {
                writer.push(group)?;
                writer.check_disk(share)
            })
        })?;
        let counts = cache.header.counts.clone();
        Ok((Store::Cached(Arc::new(cache)), counts))
    })
}

/// A dataset of parts that are kept whole, each in the store that `store` makes of it.
fn stored(
    sources: Vec<Weighted>,
    tokenizer: &Tokenizer,
    options: &Options,
    observe: Observer<'_>,
    mut store: impl FnMut(&Part, &ThreadPool, &mut Watch) -> Result<(Store, Counts), DataError>,
) -> Result<Dataset, DataError> {
    let (parts, weights) = open_parts(sources, options)?;
    let pool = pool(options.workers)?;
    let total = parts.iter().map(|part| part.source.bytes()).sum();
    let mut watch = Watch::new(total, observe);
    let (mut stores, mut counts, mut extent) = (Vec::new(), Counts::default(), Extent::default());
    for part in &parts {
        let (made, counted) = store(part, &pool, &mut watch)?;
        counts.add(&counted);
        extent.join(&made.extent());
        stores.push(made);
    }
    let summary = Summary { shape: parts[0].shape, counts };
    finish(stores, weights, summary, extent, tokenizer, options)
}

pub(super) fn streamed(
    sources: Vec<Weighted>,
    tokenizer: Arc<Tokenizer>,
    options: &Options,
    buffer_bytes: u64,
) -> Result<Dataset, DataError> {
    let (parts, weights) = open_parts(sources, options)?;
    let width = Width::of(tokenizer.vocab_size());
    let lanes_count = if weights.is_some() { parts.len() as u64 } else { 1 };
    let block_bytes = block_bytes(buffer_bytes / lanes_count, options, width)?;
    let keys = parts.iter().map(|part| key(part, &tokenizer, options));
    let identity = keys.fold(mix(block_bytes), |hash, key| mix(hash ^ (key as u64) ^ ((key >> 64) as u64)));
    let shape = parts[0].shape;
    let pool = Arc::new(pool(options.workers)?);
    let lane = |parts: Vec<Part>| {
        let (tokenizer, pool) = (tokenizer.clone(), pool.clone());
        Arc::new(Lane { parts, tokenizer, options: *options, pool, block_bytes, bad: AtomicU64::new(0) })
    };
    let lanes: Vec<Arc<Lane>> = match &weights {
        Some(_) => parts.into_iter().map(|part| lane(vec![part])).collect(),
        None => vec![lane(parts)],
    };
    Ok(Dataset {
        kept: Kept::Streamed { lanes, weights, identity },
        summary: Summary { shape, counts: Counts::default() },
        extent: None,
        group: options.task.group(),
        max_length: options.max_length,
        width,
    })
}

/// Tokenises everything once and keeps only the sums.
pub(super) fn count(lanes: &[Arc<Lane>], observe: Observer<'_>) -> Result<(Extent, Counts), DataError> {
    let total = lanes.iter().flat_map(|lane| &lane.parts).map(|part| part.source.bytes()).sum();
    let mut watch = Watch::new(total, observe);
    let (mut extent, mut counts) = (Extent::default(), Counts::default());
    for lane in lanes {
        let made =
            tokenise_all(&lane.parts, &lane.tokenizer, &lane.options, &lane.pool, &mut watch, &mut |group, _| {
                group.entries.iter().for_each(|entry| extent.add(entry));
                Ok(())
            })?;
        counts.add(&made);
    }
    if let Some(lane) = lanes.first() {
        check_left(&extent, &counts, &lane.options)?;
    }
    Ok((extent, counts))
}

fn finish(
    stores: Vec<Store>,
    weights: Option<Vec<f64>>,
    summary: Summary,
    extent: Extent,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Dataset, DataError> {
    check_left(&extent, &summary, options)?;
    if weights.is_some() {
        // A source of a mixture that gives nothing cannot have a share.
        stores.iter().try_for_each(|store| check_left(&store.extent(), &summary, options))?;
    }
    let width = Width::of(tokenizer.vocab_size());
    let group = options.task.group();
    let kept = Kept::Stored(Arc::new(Stored { stores, weights, group, width }));
    Ok(Dataset { kept, summary, extent: Some(extent), group, max_length: options.max_length, width })
}

fn check_left(extent: &Extent, counts: &Counts, options: &Options) -> Result<(), DataError> {
    let Counts { rows, identical, .. } = *counts;
    let max_length = options.max_length;
    match (extent.sequences, options.task) {
        (0, Task::Reward) => Err(DataError::NoPairsLeft { rows, identical, max_length }),
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
pub(crate) fn open_parts(
    sources: Vec<Weighted>,
    options: &Options,
) -> Result<(Vec<Part>, Option<Vec<f64>>), DataError> {
    check(options)?;
    let weights: Vec<f64> = sources.iter().filter_map(|source| source.weight).collect();
    if sources.is_empty() {
        return Err(DataError::Empty { files: "no source".to_owned() });
    }
    if !weights.is_empty() && weights.len() != sources.len() {
        return Err(DataError::SomeWeights { sources: sources.len(), weighted: weights.len() });
    }
    let part = |Weighted { source, .. }| {
        let shape = shape_of(&source, options)?;
        Ok(Part { source, shape })
    };
    let parts = sources.into_iter().map(part).collect::<Result<Vec<Part>, DataError>>()?;
    Ok((parts, (!weights.is_empty()).then_some(weights)))
}

/// What the rows of a source are, told from the first of them.
pub fn shape_of(source: &Source, options: &Options) -> Result<Shape, DataError> {
    let first: Vec<Result<Row, DataError>> = source.all().take(ROWS_TO_TELL).collect();
    if first.is_empty() {
        return Err(DataError::Empty { files: source.name() });
    }
    tell_shape(first, options).map(|(_, shape)| shape)
}

type FirstRows = Vec<Result<Row, DataError>>;

/// The shape of the first row that tells; if none does, what was wrong with the first.
fn tell_shape(mut first: FirstRows, options: &Options) -> Result<(FirstRows, Shape), DataError> {
    let told: Vec<Result<Shape, DataError>> =
        first.iter().flatten().map(|row| resolve_shape(options, row)).take_while_ok().collect();
    let mut problem = None;
    for shape in told {
        match shape {
            Ok(shape) => return Ok((first, shape)),
            Err(error) => problem = problem.or(Some(error)),
        }
    }
    // No row could even be read, or none is of a known shape.
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

fn resolve_shape(options: &Options, first: &Row) -> Result<Shape, DataError> {
    // Tables of pairs often carry a conversation for other tasks beside them.
    if options.task == Task::Reward && options.format == Format::Auto && pairs::detects(first) {
        return Ok(Shape::Pairs);
    }
    let shape = options.format.resolve(first)?;
    let has_text = first.columns.get("text").is_some_and(Value::is_string);
    match (options.task, shape) {
        (Task::Reward, Shape::Pairs) => Ok(shape),
        (Task::Reward, other) => {
            Err(DataError::NotPairs { at: first.at.clone(), found: other.name(), accepted: pairs::ACCEPTS })
        }
        (_, Shape::Pairs) => Err(DataError::OnlyPairs { at: first.at.clone() }),
        (Task::Sft, shape) | (Task::Pretrain, shape @ Shape::Text) => Ok(shape),
        // `auto` prefers the richer shape, but here only the text is of use.
        (Task::Pretrain, _) if options.format == Format::Auto && has_text => Ok(Shape::Text),
        (Task::Pretrain, other) => Err(DataError::NotText { at: first.at.clone(), found: other.name() }),
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
    part: &Part,
    tokenizer: &Tokenizer,
    options: &Options,
    pool: &ThreadPool,
    watch: &mut Watch<'_>,
    take: Take<'_>,
) -> Result<Counts, DataError> {
    tokenise_all(std::slice::from_ref(part), tokenizer, options, pool, watch, take)
}

fn tokenise_all(
    parts: &[Part],
    tokenizer: &Tokenizer,
    options: &Options,
    pool: &ThreadPool,
    watch: &mut Watch<'_>,
    take: Take<'_>,
) -> Result<Counts, DataError> {
    let encoders = parts.iter().map(|part| Encoder::new(tokenizer, part.shape)).collect::<Result<_, _>>()?;
    let mut pump = Pump::new(Files::in_order(parts, options.hold_out), encoders, tokenizer, options, pool);
    let mut groups = 0u64;
    loop {
        let share = pump.supply().read_share();
        let Some(group) = pump.next_group()? else { break };
        take(group, share)?;
        groups += 1;
        if groups.is_multiple_of(GROUPS_PER_REPORT) {
            watch.tell(pump.tally.counts.rows, pump.supply().bytes_read());
        }
    }
    let bytes = parts.iter().map(|part| part.source.bytes()).sum();
    watch.tell(pump.tally.counts.rows, bytes);
    watch.rows += pump.tally.counts.rows;
    watch.bytes += bytes;
    Ok(pump.tally.counts)
}
