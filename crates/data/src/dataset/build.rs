//! Making datasets.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rayon::ThreadPool;

use super::options::{Options, Progress};
use super::sources::{Sources, check_lengths, detect_format, sample};
use super::{Dataset, Observer, Storage};
use crate::error::DataError;
use crate::order::{Stored, mix};
use crate::read::{Files, Listed, OpenedSource, Row, RowReader};
use crate::store::{Group, Layout, Records, Store, StreamSource, Totals, build_or_open, chunk_bytes, file_name, key};
use crate::tokenize::{Counts, Encoder, Producer, Summary, Tokenizer};

/// Rows looked at to find out what rows at hand are.
const ROWS_TO_DETECT: usize = 16;
/// Groups between two looks at progress and disk.
const GROUPS_PER_REPORT: u64 = 256;

pub(super) fn from_rows(
    rows: impl Iterator<Item = Result<Row, DataError>> + Send,
    origin: &str,
    tokenizer: &Tokenizer,
    options: &Options,
) -> Result<Dataset, DataError> {
    check_lengths(options)?;
    let mut rows = rows.fuse().map(|row| {
        row.map(|mut row| {
            options.columns.apply(&mut row);
            row
        })
    });
    let first: std::collections::VecDeque<_> = rows.by_ref().take(ROWS_TO_DETECT).collect();
    if first.is_empty() {
        return Err(DataError::Empty { files: origin.to_owned() });
    }
    let (first, format) = detect_format(first, options)?;
    let pool = pool(options.workers)?;
    let reader = Listed::new(first.into_iter().chain(rows), options.hold_out);
    let encoders = vec![Encoder::new(tokenizer, format, options)?];
    let mut producer = Producer::new(reader, encoders, tokenizer, options, &pool);
    let mut records = Records::default();
    while let Some(group) = producer.next_group()? {
        records.push(group);
    }
    records.shrink();
    let counts = producer.tally.counts;
    let totals = Totals::of(&records, options.content.streams());
    finish(vec![Store::Memory(Arc::new(records))], None, Summary { format, counts }, totals, tokenizer, options)
}

pub(super) fn in_memory(
    sources: Sources,
    tokenizer: &Tokenizer,
    options: &Options,
    observe: Observer<'_>,
) -> Result<Dataset, DataError> {
    let mut held = 0u64;
    stored(sources, tokenizer, options, observe, |opened, pool, watch| {
        let mut records = Records::default();
        let limit = options.memory_bytes_max.unwrap_or(u64::MAX);
        let counts = tokenise(opened, tokenizer, options, pool, watch, &mut |group, share| {
            records.push(group);
            // What is written, not what is reserved: pages that nothing was written to take no memory.
            let bytes = held + records.size() as u64;
            let share_percent = 100.0 * share;
            if bytes <= limit { Ok(()) } else { Err(DataError::MemoryFull { bytes, share_percent, limit }) }
        })?;
        records.shrink();
        held += records.resident_bytes();
        Ok((Store::Memory(Arc::new(records)), counts))
    })
}

pub(super) fn cached(
    sources: Sources,
    tokenizer: &Tokenizer,
    options: &Options,
    folder: &Path,
    observe: Observer<'_>,
) -> Result<Dataset, DataError> {
    let streams = options.content.streams();
    stored(sources, tokenizer, options, observe, |opened, pool, watch| {
        let key = key(opened, tokenizer, options);
        let cache = build_or_open(&folder.join(file_name(key)), key, &mut |maker| {
            let expected = sample(opened, tokenizer, options)?;
            maker.make(expected, &mut |writer| {
                tokenise(opened, tokenizer, options, pool, watch, &mut |group, share| {
                    writer.push(group, streams)?;
                    writer.check_disk(share)
                })
            })
        })?;
        let counts = cache.header.counts.clone();
        Ok((Store::Cached(Arc::new(cache)), counts))
    })
}

/// A dataset of sources that are stored whole, each in the store that `store` makes of it.
fn stored(
    sources: Sources,
    tokenizer: &Tokenizer,
    options: &Options,
    observe: Observer<'_>,
    mut store: impl FnMut(&mut OpenedSource, &ThreadPool, &mut Watch) -> Result<(Store, Counts), DataError>,
) -> Result<Dataset, DataError> {
    let Sources { opened, weights } = sources;
    let pool = pool(options.workers)?;
    let total = opened.iter().map(|opened| opened.source.bytes()).sum();
    let format = opened[0].formats[0].format;
    let mut watch = Watch::new(total, observe);
    let (mut stores, mut counts, mut totals) = (Vec::new(), Counts::default(), Totals::default());
    for mut opened in opened {
        let (made, counted) = store(&mut opened, &pool, &mut watch)?;
        counts.add(&counted);
        totals.join(&made.totals(options.content.streams()));
        stores.push(made);
    }
    finish(stores, weights, Summary { format, counts }, totals, tokenizer, options)
}

pub(super) fn streamed(
    sources: Sources,
    tokenizer: Arc<Tokenizer>,
    options: &Options,
    buffer_bytes: u64,
) -> Result<Dataset, DataError> {
    let Sources { mut opened, weights } = sources;
    // A stream begins anew in each epoch, and in an order of its own.
    opened.iter_mut().for_each(|opened| opened.sample = None);
    if options.hold_out.is_some() {
        // Units come in any order, and which rows are held out depends on the rows before them in the files.
        for OpenedSource { source, .. } in &opened {
            source.rows_before(source.units().saturating_sub(1) as u32)?;
        }
    }
    let layout = Layout::of(&tokenizer, options);
    let stream_count = if weights.is_some() { opened.len() as u64 } else { 1 };
    let chunk_bytes = chunk_bytes(buffer_bytes / stream_count, options, layout)?;
    let keys = opened.iter().map(|opened| key(opened, &tokenizer, options));
    let identity = keys.fold(mix(chunk_bytes), |hash, key| mix(hash ^ (key as u64) ^ ((key >> 64) as u64)));
    let format = opened[0].formats[0].format;
    let pool = Arc::new(pool(options.workers)?);
    let stream_source = |opened: Vec<OpenedSource>| {
        let (tokenizer, options, pool) = (tokenizer.clone(), options.clone(), pool.clone());
        Arc::new(StreamSource { opened, tokenizer, options, pool, chunk_bytes, bad: AtomicU64::new(0) })
    };
    let stream_sources: Vec<Arc<StreamSource>> = match &weights {
        Some(_) => opened.into_iter().map(|opened| stream_source(vec![opened])).collect(),
        None => vec![stream_source(opened)],
    };
    Ok(Dataset {
        storage: Storage::Streamed { stream_sources, weights, identity },
        summary: Summary { format, counts: Counts::default() },
        totals: None,
        layout,
        max_length: options.max_lengths(),
        hold_out: options.hold_out,
    })
}

/// Tokenises everything once and keeps only the sums.
pub(super) fn count(
    stream_sources: &[Arc<StreamSource>],
    observe: Observer<'_>,
) -> Result<(Totals, Counts), DataError> {
    let opened = stream_sources.iter().flat_map(|stream_source| &stream_source.opened);
    let mut watch = Watch::new(opened.map(|opened| opened.source.bytes()).sum(), observe);
    let (mut totals, mut counts) = (Totals::default(), Counts::default());
    for stream_source in stream_sources {
        let StreamSource { opened, tokenizer, options, pool, .. } = &**stream_source;
        let mut producer = producer(opened, tokenizer, options, pool)?;
        let streams = options.content.streams();
        let made = drain(&mut producer, opened, &mut watch, &mut |group, _| {
            totals.add(&group.entries, streams);
            Ok(())
        })?;
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
    let layout = Layout::of(tokenizer, options);
    if weights.is_some() {
        // A source of a mixture that gives nothing cannot have a share.
        stores.iter().try_for_each(|store| check_left(&store.totals(layout.streams), &summary, options))?;
    }
    let storage = Storage::Stored(Arc::new(Stored { stores, weights, layout }));
    let (max_length, hold_out) = (options.max_lengths(), options.hold_out);
    Ok(Dataset { storage, summary, totals: Some(totals), layout, max_length, hold_out })
}

fn check_left(totals: &Totals, counts: &Counts, options: &Options) -> Result<(), DataError> {
    let Counts { rows, identical, other_side, .. } = *counts;
    let max_length = options.max_length;
    let is_rest = options.hold_out.is_some_and(|hold| !hold.held);
    match (totals.sequences, options.content.group()) {
        (0, _) if is_rest && rows == 0 && other_side > 0 => Err(DataError::AllHeldOut { rows: other_side }),
        (0, 1) => Err(DataError::NothingLeft { rows, max_length }),
        (0, _) => Err(DataError::NoPairsLeft { rows, identical, max_length }),
        _ => Ok(()),
    }
}

pub(super) fn pool(workers: usize) -> Result<ThreadPool, DataError> {
    let builder = rayon::ThreadPoolBuilder::new().num_threads(workers.max(1)).thread_name(|i| format!("tokenise {i}"));
    builder.build().map_err(|error| DataError::Thread { source: std::io::Error::other(error) })
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

    fn report(&mut self, rows: u64, bytes: u64) {
        let bytes_read = (self.bytes + bytes).min(self.total);
        (self.observe)(&Progress { rows: self.rows + rows, bytes_read, bytes_total: self.total });
    }
}

/// Takes a group and the share of the data that has been read.
type Take<'a> = &'a mut dyn FnMut(&Group, f64) -> Result<(), DataError>;

/// All groups of a source; those of its sample are taken as they are.
fn tokenise(
    opened: &mut OpenedSource,
    tokenizer: &Tokenizer,
    options: &Options,
    pool: &ThreadPool,
    watch: &mut Watch<'_>,
    take: Take<'_>,
) -> Result<Counts, DataError> {
    let sampled = opened.sample.take();
    let source = std::slice::from_ref(&*opened);
    let mut producer = producer(source, tokenizer, options, pool)?;
    if let Some(sampled) = sampled {
        let share = sampled.share;
        let records = producer.go_on(*sampled)?;
        let per_group = Layout::of(tokenizer, options).records_per_group();
        let mut group = Group::default();
        for entries in records.entries.chunks(per_group) {
            records.copy_group(entries, &mut group);
            take(&group, share)?;
        }
    }
    drain(&mut producer, source, watch, take)
}

fn producer<'a>(
    opened: &'a [OpenedSource],
    tokenizer: &'a Tokenizer,
    options: &Options,
    pool: &'a ThreadPool,
) -> Result<Producer<'a, Files<'a>>, DataError> {
    let encoders = opened.iter().map(|opened| opened.encoders(tokenizer, options)).collect::<Result<Vec<_>, _>>()?;
    let encoders = encoders.into_iter().flatten().collect();
    Ok(Producer::new(Files::in_order(opened, options.hold_out), encoders, tokenizer, options, pool))
}

fn drain(
    producer: &mut Producer<'_, Files<'_>>,
    opened: &[OpenedSource],
    watch: &mut Watch<'_>,
    take: Take<'_>,
) -> Result<Counts, DataError> {
    let mut groups = 0u64;
    loop {
        let share = producer.reader().read_share();
        let Some(group) = producer.next_group()? else { break };
        take(group, share)?;
        groups += 1;
        if groups.is_multiple_of(GROUPS_PER_REPORT) {
            watch.report(producer.tally.counts.rows, producer.reader().bytes_read());
        }
    }
    let (rows, bytes) = (producer.tally.counts.rows, opened.iter().map(|opened| opened.source.bytes()).sum());
    watch.report(rows, bytes);
    watch.rows += rows;
    watch.bytes += bytes;
    Ok(std::mem::take(&mut producer.tally.counts))
}
