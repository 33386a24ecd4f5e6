//! Micro-batches ahead of whoever trains: a thread plans updates and fills a ring of micro-batches that are taken once and
//! used again and again.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::batch::{Amount, Capacity, MicroBatch, PerStream, Planner, Rules, UpdateHead, check_streams, planner_bytes};
use crate::dataset::Dataset;
use crate::error::DataError;
use crate::order::Cursor;

/// Micro-batches of a ring, unless another number is asked for: one in use, one ready, two to even things out.
pub const SLOTS: usize = 4;

#[derive(Debug, Clone)]
pub struct FeedOptions {
    /// Of one micro-batch.
    pub capacity: Capacity,
    /// Of each stream.
    pub max_length: PerStream<usize>,
    pub amount: Amount,
    /// This rank's share is every `ranks`-th group of an update, beginning with the `rank`-th.
    pub rank: usize,
    pub ranks: usize,
    pub seed: u64,
    pub shuffle: bool,
    /// Micro-batches in the ring.
    pub slots: usize,
    /// Where to go on; from the beginning if there is none.
    pub cursor: Option<Cursor>,
}

impl FeedOptions {
    /// One rank, shuffled, from the beginning.
    pub fn new(capacity: Capacity, max_length: impl Into<PerStream<usize>>, amount: Amount, seed: u64) -> Self {
        let max_length = max_length.into();
        Self { capacity, max_length, amount, rank: 0, ranks: 1, seed, shuffle: true, slots: SLOTS, cursor: None }
    }

    /// What the ring and planning hold.
    pub(crate) fn own_bytes(&self, group: usize, marked: bool) -> u64 {
        let batch = MicroBatch::filled_bytes(&self.capacity, &self.max_length, group, marked);
        self.slots as u64 * batch + planner_bytes(self.amount, group, self.capacity.len())
    }

    fn rules(&self, group: usize, streams: usize) -> Result<Rules, DataError> {
        let refuse = |reason: String| Err(DataError::Feed { reason });
        check_streams(&self.max_length, &self.capacity)?;
        if self.capacity.len() != streams {
            return refuse(format!("the data has {streams} streams and a micro-batch {}", self.capacity.len()));
        }
        if self.slots == 0 {
            return refuse("a ring of no micro-batches holds none".into());
        }
        if self.rank >= self.ranks {
            return refuse(format!("there is no rank {} of {}", self.rank, self.ranks));
        }
        match self.amount {
            Amount::Sequences(n) if n == 0 || !n.is_multiple_of(group as u64) => {
                return refuse(format!("an update of {n} sequences is not made of groups of {group}"));
            }
            Amount::Tokens(0) => return refuse("an update of no tokens has nothing to learn from".into()),
            _ => {}
        }
        let (rank, ranks) = (self.rank as u64, self.ranks as u64);
        let Self { amount, capacity, max_length, .. } = *self;
        Ok(Rules { amount, capacity, max_length, group, rank, ranks })
    }
}

/// What travels from the thread.
enum Parcel {
    Head(UpdateHead),
    Batch(MicroBatch),
    Failed(DataError),
}

/// What travels back.
enum Return {
    Empty(MicroBatch),
    Stop,
}

/// An endless feed of updates.
pub struct Feed {
    parcels: Option<Receiver<Parcel>>,
    returns: Sender<Return>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    planned_bytes: u64,
    cursor: Cursor,
    /// Micro-batches of the update that were not yet taken.
    left: u64,
    waited: Waited,
}

/// How long the consumer stood still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waited {
    /// For heads and micro-batches that were not ready.
    pub total: Duration,
    /// How often the ring had nothing.
    pub empty: u64,
    /// How often something was asked for.
    pub asked: u64,
}

impl Feed {
    pub fn start(dataset: &Dataset, options: &FeedOptions) -> Result<Self, DataError> {
        let rules = options.rules(dataset.group(), dataset.streams())?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut iteration = dataset.iterate(options.seed, options.shuffle, &stop)?;
        if let Some(cursor) = &options.cursor {
            iteration.seek(cursor)?;
        }
        let cursor = iteration.cursor();
        // Space for every filled micro-batch and for the heads between them.
        let (send, parcels) = sync_channel(2 * options.slots + 1);
        let (returns, returned) = channel();
        for _ in 0..options.slots {
            let FeedOptions { capacity, max_length, .. } = options;
            let batch = MicroBatch::with_filled_capacity(capacity, max_length, dataset.group(), dataset.has_marks());
            let _ = returns.send(Return::Empty(batch));
        }
        let planner = Planner::new(iteration, rules);
        let run = move || load(planner, &returned, &send);
        let thread = std::thread::Builder::new().name("data feed".into()).spawn(run);
        let thread = thread.map_err(|source| DataError::Thread { source })?;
        Ok(Self {
            parcels: Some(parcels),
            returns,
            stop,
            thread: Some(thread),
            planned_bytes: dataset.footprint().feed_bytes(options),
            cursor,
            left: 0,
            waited: Waited::default(),
        })
    }

    /// What it holds at most: ring, planning, and the dataset's buffers and index pages.
    pub fn planned_bytes(&self) -> u64 {
        self.planned_bytes
    }

    /// The next update. Micro-batches of the one before that were not taken are passed over.
    pub fn next_update(&mut self) -> Result<UpdateHead, DataError> {
        loop {
            match self.receive()? {
                Parcel::Head(head) => {
                    self.cursor = head.cursor.clone();
                    self.left = head.micro_batches;
                    return Ok(head);
                }
                Parcel::Batch(batch) => drop(BatchLease { batch: Some(batch), returns: self.returns.clone() }),
                Parcel::Failed(error) => return Err(error),
            }
        }
    }

    /// The update's next micro-batch; `None` behind its last.
    pub fn next_batch(&mut self) -> Result<Option<BatchLease>, DataError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        match self.receive()? {
            Parcel::Batch(batch) => Ok(Some(BatchLease { batch: Some(batch), returns: self.returns.clone() })),
            Parcel::Failed(error) => Err(error),
            Parcel::Head(_) => Err(DataError::Malformed),
        }
    }

    fn receive(&mut self) -> Result<Parcel, DataError> {
        let Some(parcels) = &self.parcels else { return Err(DataError::Stopped) };
        self.waited.asked += 1;
        match parcels.try_recv() {
            Ok(parcel) => Ok(parcel),
            Err(TryRecvError::Disconnected) => Err(DataError::Stopped),
            Err(TryRecvError::Empty) => {
                let began = Instant::now();
                let parcel = parcels.recv().map_err(|_| DataError::Stopped);
                self.waited.empty += 1;
                self.waited.total += began.elapsed();
                parcel
            }
        }
    }

    /// Behind the update announced last: a run that starts from it sees what this one would see next.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Since the feed was started.
    pub fn waited(&self) -> Waited {
        self.waited
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Leases may still be out; the thread must not wait for them.
        let _ = self.returns.send(Return::Stop);
        self.parcels = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A micro-batch that goes back to the ring when it is dropped.
pub struct BatchLease {
    batch: Option<MicroBatch>,
    returns: Sender<Return>,
}

impl Deref for BatchLease {
    type Target = MicroBatch;

    fn deref(&self) -> &MicroBatch {
        self.batch.as_ref().expect("it is there until it is dropped")
    }
}

/// For [`MicroBatch::fill_up`]; what was changed is cleared before the batch is used again.
impl DerefMut for BatchLease {
    fn deref_mut(&mut self) -> &mut MicroBatch {
        self.batch.as_mut().expect("it is there until it is dropped")
    }
}

impl Drop for BatchLease {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.take() {
            let _ = self.returns.send(Return::Empty(batch));
        }
    }
}

/// The thread: ends when the feed is gone or after an error.
fn load(mut planner: Planner, returned: &Receiver<Return>, send: &SyncSender<Parcel>) {
    loop {
        let head = match planner.plan() {
            Ok(head) => head,
            Err(error) => return drop(send.send(Parcel::Failed(error))),
        };
        let batches = head.micro_batches;
        if send.send(Parcel::Head(head)).is_err() {
            return;
        }
        for _ in 0..batches {
            let Ok(Return::Empty(mut batch)) = returned.recv() else { return };
            let parcel = match planner.fill(&mut batch) {
                Ok(true) => Parcel::Batch(batch),
                Ok(false) => Parcel::Failed(DataError::Malformed),
                Err(error) => Parcel::Failed(error),
            };
            let failed = matches!(parcel, Parcel::Failed(_));
            if send.send(parcel).is_err() || failed {
                return;
            }
        }
    }
}
