//! Chunks of a stream: read, tokenised and shuffled in the background, one ahead of the one in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use rayon::ThreadPool;
use serde::{Deserialize, Serialize};

use super::record::{Entry, Layout, Records};
use crate::dataset::Options;
use crate::error::DataError;
use crate::order::Permutation;
use crate::order::{epoch_key, mix};
use crate::read::Position;
use crate::read::{Files, OpenedSource, RowAt, units};
use crate::tokenize::Counts;
use crate::tokenize::Encoder;
use crate::tokenize::Tokenizer;
use crate::tokenize::{Origin, Producer, producer_bytes};

/// Chunks alive at a time: two that a window of groups may reach over, and the one being filled.
const CHUNKS: u64 = 3;
/// So many chunks are smaller than the others.
const RAMP: u64 = 5;
/// A chunk must hold at least this many of the largest groups, or shuffling in it means nothing.
const GROUPS_PER_CHUNK_MIN: u64 = 8;

/// Where a chunk begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkStart {
    /// Chunks before it since the start of the run.
    pub number: u64,
    pub epoch: u64,
    pub at: RowAt,
    /// Tokens of that row that belong to sequences before (`Content::is_continuous`).
    pub skip: u32,
    /// Groups of the epoch before the chunk.
    pub emitted: u64,
}

/// Sources that are streamed as one, in an order of units of their own.
pub(crate) struct StreamSource {
    pub opened: Vec<OpenedSource>,
    pub tokenizer: Arc<Tokenizer>,
    pub options: Options,
    pub pool: Arc<ThreadPool>,
    pub chunk_bytes: u64,
    /// Bad rows met so far, over and above what the policy forbids.
    pub bad: AtomicU64,
}

impl StreamSource {
    pub(crate) fn layout(&self) -> Layout {
        Layout::of(&self.tokenizer, &self.options)
    }

    fn order_of(&self, epoch: u64, order: &StreamOrder) -> Permutation {
        let units = units(&self.opened);
        if order.shuffle { Permutation::new(units, epoch_key(order.seed, epoch)) } else { Permutation::identity(units) }
    }

    /// The first chunks are smaller, each twice the one before: training need not wait for a full one.
    fn capacity_of(&self, number: u64) -> u64 {
        self.chunk_bytes >> RAMP.saturating_sub(number)
    }

    fn encoders(&self) -> Result<Vec<Encoder<'_>>, DataError> {
        let encoders = self.opened.iter().map(|opened| opened.encoders(&self.tokenizer, &self.options));
        Ok(encoders.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// What streaming it takes: chunks, and the producer that fills them.
    pub(crate) fn planned_bytes(&self) -> u64 {
        let reading = self.opened.iter().map(|opened| opened.source.reading_bytes()).max();
        CHUNKS * self.chunk_bytes + producer_bytes(self.options.workers) + reading.unwrap_or(0)
    }
}

/// The size of a chunk that keeps a stream within `buffer_bytes`.
pub(crate) fn chunk_bytes(buffer_bytes: u64, options: &Options, layout: Layout) -> Result<u64, DataError> {
    let largest = layout.group_bytes_max(&options.max_lengths());
    let needed = CHUNKS * GROUPS_PER_CHUNK_MIN * largest;
    if buffer_bytes < needed {
        return Err(DataError::StreamBuffer { bytes: buffer_bytes, needed, max_length: options.max_length });
    }
    Ok(buffer_bytes / CHUNKS)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamOrder {
    pub seed: u64,
    pub shuffle: bool,
}

/// Examples that are read together and shuffled among each other.
pub(crate) struct Chunk {
    pub start: ChunkStart,
    /// Where the one behind it begins.
    pub next: ChunkStart,
    pub records: Records,
    records_per_group: usize,
    order: Permutation,
}

impl Chunk {
    fn new(start: ChunkStart, next: ChunkStart, records: Records, layout: Layout, order: &StreamOrder) -> Self {
        let groups = (records.entries.len() / layout.records_per_group()) as u64;
        let key = mix(epoch_key(order.seed, start.epoch) ^ mix(start.emitted.wrapping_add(1)));
        let order = if order.shuffle { Permutation::new(groups, key) } else { Permutation::identity(groups) };
        Self { start, next, records, records_per_group: layout.records_per_group(), order }
    }

    pub(crate) fn groups(&self) -> u64 {
        self.order.len()
    }

    /// The entries of the group whose turn it is `index`-th.
    pub(crate) fn group_at(&self, index: u64) -> &[Entry] {
        let first = self.order.at(index) as usize * self.records_per_group;
        &self.records.entries[first..first + self.records_per_group]
    }
}

type Filled = Result<Chunk, DataError>;

/// The thread that fills chunks.
pub(crate) struct Filler {
    requests: Option<Sender<(ChunkStart, Records)>>,
    chunks: Option<Receiver<Filled>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filler {
    /// Whoever sets `stop` need not wait for a chunk to be full.
    pub(crate) fn start(
        source: Arc<StreamSource>,
        order: StreamOrder,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, DataError> {
        let (requests, requested) = channel();
        let (filled, chunks) = sync_channel(1);
        let stopping = stop.clone();
        let run = move || fill_requests(&source, order, &requested, &filled, &stopping);
        let thread = std::thread::Builder::new().name("data chunks".into()).spawn(run);
        let thread = thread.map_err(|source| DataError::Thread { source })?;
        Ok(Self { requests: Some(requests), chunks: Some(chunks), stop, thread: Some(thread) })
    }

    /// `spare` is memory to use again.
    pub(crate) fn request(&self, start: ChunkStart, spare: Records) {
        if let Some(requests) = &self.requests {
            // A thread that has ended has said why; `take` tells.
            let _ = requests.send((start, spare));
        }
    }

    /// Waits for the chunk requested first.
    pub(crate) fn take(&self) -> Filled {
        let chunk = self.chunks.as_ref().and_then(|chunks| chunks.recv().ok());
        chunk.unwrap_or(Err(DataError::Stopped))
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Both ends go, so that the thread waits for neither a request nor for capacity.
        (self.requests, self.chunks) = (None, None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Goes on where it stands when chunks are asked for in turn; else opens the files anew.
fn fill_requests(
    source: &StreamSource,
    order: StreamOrder,
    requests: &Receiver<(ChunkStart, Records)>,
    filled: &SyncSender<Filled>,
    stop: &AtomicBool,
) {
    let mut standing: Option<(ChunkStart, Producer<'_, Files<'_>>)> = None;
    while let Ok((start, spare)) = requests.recv() {
        let ready = match standing.take() {
            Some((at, producer)) if at == start => Ok(producer),
            _ => open(source, &order, &start, stop),
        };
        let chunk = ready.and_then(|mut producer| {
            let chunk = fill(source, &order, start, spare, &mut producer)?;
            if chunk.next.epoch == start.epoch {
                standing = Some((chunk.next, producer));
            }
            Ok(chunk)
        });
        let failed = chunk.is_err();
        if filled.send(chunk).is_err() || failed {
            return;
        }
    }
}

fn open<'a>(
    source: &'a StreamSource,
    order: &StreamOrder,
    start: &ChunkStart,
    stop: &'a AtomicBool,
) -> Result<Producer<'a, Files<'a>>, DataError> {
    let mut files = Files::new(&source.opened, source.order_of(start.epoch, order), source.options.hold_out);
    files.seek(&start.at)?;
    let mut producer = Producer::new(files, source.encoders()?, &source.tokenizer, &source.options, &source.pool);
    producer.resume(&Origin { at: start.at, skip: start.skip, emitted: start.emitted });
    producer.stop_with(stop);
    producer.prime();
    Ok(producer)
}

/// Groups from `start` on, as many as a chunk holds.
fn fill(
    source: &StreamSource,
    order: &StreamOrder,
    start: ChunkStart,
    mut records: Records,
    producer: &mut Producer<'_, Files<'_>>,
) -> Filled {
    records.clear();
    let bad_before = producer.tally.counts.bad;
    let (capacity, number) = (source.capacity_of(start.number) as usize, start.number + 1);
    let next = loop {
        let origin = producer.origin();
        let Some(group) = producer.next_group()? else { break first_chunk(start.epoch + 1, number) };
        if records.size() + group.size() > capacity && !records.entries.is_empty() {
            let Some(origin) = origin else { return Err(DataError::Malformed) };
            producer.give_back(origin);
            let Origin { at, skip, emitted } = origin;
            break ChunkStart { number, epoch: start.epoch, at, skip, emitted };
        }
        records.push(group);
    };
    source.bad.fetch_add(producer.tally.counts.bad - bad_before, Ordering::Relaxed);
    if records.entries.is_empty() {
        let Counts { rows, other_side, .. } = producer.tally.counts;
        if rows == 0 && other_side > 0 && source.options.hold_out.is_some_and(|hold| !hold.held) {
            return Err(DataError::AllHeldOut { rows: other_side });
        }
        let max_length = source.options.max_length;
        return Err(DataError::NothingLeft { rows, max_length });
    }
    Ok(Chunk::new(start, next, records, source.layout(), order))
}

/// Where an epoch begins.
pub(crate) fn first_chunk(epoch: u64, number: u64) -> ChunkStart {
    ChunkStart { number, epoch, at: RowAt { turn: 0, position: Position::default() }, skip: 0, emitted: 0 }
}
