//! Blocks of a stream: read, tokenised and shuffled in the background, one ahead of the one in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use rayon::ThreadPool;
use serde::{Deserialize, Serialize};

use crate::dataset::Options;
use crate::encode::Encoder;
use crate::error::DataError;
use crate::order::{epoch_key, mix};
use crate::permutation::Permutation;
use crate::pump::{Origin, Pump, pump_bytes};
use crate::read::Position;
use crate::record::{Entry, Records, Width, bytes_max};
use crate::supply::{Files, Part, RowAt, units};
use crate::tokenizer::Tokenizer;

/// Blocks alive at a time: two that a window of groups may reach over, and the one being filled.
const BLOCKS: u64 = 3;
/// So many blocks are smaller than the others.
const RAMP: u64 = 5;
/// A block must hold at least this many of the largest groups, or shuffling in it means nothing.
const GROUPS_PER_BLOCK_MIN: u64 = 8;

/// Where a block begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStart {
    /// Blocks before it since the start of the run.
    pub number: u64,
    pub epoch: u64,
    pub at: RowAt,
    /// Tokens of that row that belong to sequences before (`Task::Pretrain`).
    pub skip: u32,
    /// Groups of the epoch before the block.
    pub emitted: u64,
}

/// Sources that are streamed as one, in an order of units of their own.
pub(crate) struct Lane {
    pub parts: Vec<Part>,
    pub tokenizer: Arc<Tokenizer>,
    pub options: Options,
    pub pool: Arc<ThreadPool>,
    pub block_bytes: u64,
    /// Bad rows met so far, over and above what the policy forbids.
    pub bad: AtomicU64,
}

impl Lane {
    pub(crate) fn width(&self) -> Width {
        Width::of(self.tokenizer.vocab_size())
    }

    pub(crate) fn group(&self) -> usize {
        self.options.task.group()
    }

    fn order_of(&self, epoch: u64, order: &StreamOrder) -> Permutation {
        let units = units(&self.parts);
        if order.shuffle { Permutation::new(units, epoch_key(order.seed, epoch)) } else { Permutation::identity(units) }
    }

    /// The first blocks are smaller, each twice the one before: training need not wait for a full one.
    fn room_of(&self, number: u64) -> u64 {
        self.block_bytes >> RAMP.saturating_sub(number)
    }

    fn encoders(&self) -> Result<Vec<Encoder<'_>>, DataError> {
        self.parts.iter().map(|part| Encoder::new(&self.tokenizer, part.shape)).collect()
    }

    /// What streaming it takes: blocks, and the pump that fills them.
    pub(crate) fn planned_bytes(&self) -> u64 {
        BLOCKS * self.block_bytes + pump_bytes(self.options.workers)
    }
}

/// The size of a block that keeps a stream within `buffer_bytes`.
pub(crate) fn block_bytes(buffer_bytes: u64, options: &Options, width: Width) -> Result<u64, DataError> {
    let group = options.task.group();
    let largest = (group * (bytes_max(options.max_length, width) + size_of::<Entry>())) as u64;
    let needed = BLOCKS * GROUPS_PER_BLOCK_MIN * largest;
    if buffer_bytes < needed {
        return Err(DataError::StreamBuffer { bytes: buffer_bytes, needed, max_length: options.max_length });
    }
    Ok(buffer_bytes / BLOCKS)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamOrder {
    pub seed: u64,
    pub shuffle: bool,
}

/// Examples that are read together and shuffled among each other.
pub(crate) struct Block {
    pub start: BlockStart,
    /// Where the one behind it begins.
    pub next: BlockStart,
    pub records: Records,
    order: Permutation,
}

impl Block {
    fn new(start: BlockStart, next: BlockStart, records: Records, group: usize, order: &StreamOrder) -> Self {
        let groups = (records.entries.len() / group) as u64;
        let key = mix(epoch_key(order.seed, start.epoch) ^ mix(start.emitted.wrapping_add(1)));
        let order = if order.shuffle { Permutation::new(groups, key) } else { Permutation::identity(groups) };
        Self { start, next, records, order }
    }

    pub(crate) fn groups(&self, group: usize) -> u64 {
        (self.records.entries.len() / group) as u64
    }

    /// The entries of the group whose turn it is `index`-th.
    pub(crate) fn group_at(&self, index: u64, group: usize) -> &[Entry] {
        let first = self.order.at(index) as usize * group;
        &self.records.entries[first..first + group]
    }
}

type Filled = Result<Block, DataError>;

/// The thread that fills blocks.
pub(crate) struct Filler {
    requests: Option<Sender<(BlockStart, Records)>>,
    blocks: Option<Receiver<Filled>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filler {
    /// Whoever sets `stop` need not wait for a block to be full.
    pub(crate) fn start(lane: Arc<Lane>, order: StreamOrder, stop: Arc<AtomicBool>) -> Result<Self, DataError> {
        let (requests, requested) = channel();
        let (filled, blocks) = sync_channel(1);
        let stopping = stop.clone();
        let run = move || fill_requests(&lane, order, &requested, &filled, &stopping);
        let thread = std::thread::Builder::new().name("data blocks".into()).spawn(run);
        let thread = thread.map_err(|source| DataError::Thread { source })?;
        Ok(Self { requests: Some(requests), blocks: Some(blocks), stop, thread: Some(thread) })
    }

    /// `spare` is memory to use again.
    pub(crate) fn request(&self, start: BlockStart, spare: Records) {
        if let Some(requests) = &self.requests {
            // A thread that has ended has said why; `take` tells.
            let _ = requests.send((start, spare));
        }
    }

    /// Waits for the block requested first.
    pub(crate) fn take(&self) -> Filled {
        let block = self.blocks.as_ref().and_then(|blocks| blocks.recv().ok());
        block.unwrap_or(Err(DataError::Stopped))
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Both ends go, so that the thread waits for neither a request nor for room.
        (self.requests, self.blocks) = (None, None);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Goes on where it stands when blocks are asked for in turn; else opens the files anew.
fn fill_requests(
    lane: &Lane,
    order: StreamOrder,
    requests: &Receiver<(BlockStart, Records)>,
    filled: &SyncSender<Filled>,
    stop: &AtomicBool,
) {
    let mut standing: Option<(BlockStart, Pump<'_, Files<'_>>)> = None;
    while let Ok((start, spare)) = requests.recv() {
        let ready = match standing.take() {
            Some((at, pump)) if at == start => Ok(pump),
            _ => open(lane, &order, &start, stop),
        };
        let block = ready.and_then(|mut pump| {
            let block = fill(lane, &order, start, spare, &mut pump)?;
            if block.next.epoch == start.epoch {
                standing = Some((block.next, pump));
            }
            Ok(block)
        });
        let failed = block.is_err();
        if filled.send(block).is_err() || failed {
            return;
        }
    }
}

fn open<'a>(
    lane: &'a Lane,
    order: &StreamOrder,
    start: &BlockStart,
    stop: &'a AtomicBool,
) -> Result<Pump<'a, Files<'a>>, DataError> {
    let mut files = Files::new(&lane.parts, lane.order_of(start.epoch, order), lane.options.hold_out);
    files.seek(&start.at)?;
    let mut pump = Pump::new(files, lane.encoders()?, &lane.tokenizer, &lane.options, &lane.pool);
    pump.resume(&Origin { at: start.at, skip: start.skip, emitted: start.emitted });
    pump.stop_with(stop);
    pump.prime();
    Ok(pump)
}

/// Groups from `start` on, as many as a block holds.
fn fill(
    lane: &Lane,
    order: &StreamOrder,
    start: BlockStart,
    mut records: Records,
    pump: &mut Pump<'_, Files<'_>>,
) -> Filled {
    records.clear();
    let bad_before = pump.tally.counts.bad;
    let (room, number) = (lane.room_of(start.number) as usize, start.number + 1);
    let next = loop {
        let origin = pump.origin();
        let Some(group) = pump.next_group()? else { break first_block(start.epoch + 1, number) };
        if records.size() + group.size() > room && !records.entries.is_empty() {
            let Some(origin) = origin else { return Err(DataError::Malformed) };
            pump.give_back(origin);
            let Origin { at, skip, emitted } = origin;
            break BlockStart { number, epoch: start.epoch, at, skip, emitted };
        }
        records.push(group);
    };
    lane.bad.fetch_add(pump.tally.counts.bad - bad_before, Ordering::Relaxed);
    if records.entries.is_empty() {
        let (rows, max_length) = (pump.tally.counts.rows, lane.options.max_length);
        return Err(DataError::NothingLeft { rows, max_length });
    }
    Ok(Block::new(start, next, records, lane.group(), order))
}

/// Where an epoch begins.
pub(crate) fn first_block(epoch: u64, number: u64) -> BlockStart {
    let position = Position { unit: 0, row: 0, byte: 0 };
    BlockStart { number, epoch, at: RowAt { turn: 0, position }, skip: 0, emitted: 0 }
}
