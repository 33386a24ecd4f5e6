//! Walking over streams: block after block, each shuffled in itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Cursor, LaneCursor, Located, Next};
use crate::error::DataError;
use crate::mixture::Mixture;
use crate::order::mix;
use crate::record::{Entry, Records};
use crate::stream::{Block, BlockStart, Filler, Lane, StreamOrder, first_block};

/// Blocks of a lane that a window may reach over.
const HELD_MAX: usize = 2;

pub(crate) struct StreamWalk {
    lanes: Vec<LaneWalk>,
    mixture: Option<Mixture>,
    identity: u64,
    position: u64,
    /// The lane of the group looked at.
    chosen: usize,
    pub group: Vec<Located>,
    looked: bool,
}

impl StreamWalk {
    pub(crate) fn new(
        lanes: &[Arc<Lane>],
        weights: Option<&[f64]>,
        seed: u64,
        shuffle: bool,
        identity: u64,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, DataError> {
        let mixture = weights.map(|weights| Mixture::new(weights, seed, shuffle)).transpose()?;
        let numbers = weights.into_iter().flatten().map(|weight| weight.to_bits()).chain([seed, u64::from(shuffle)]);
        let identity = numbers.fold(identity, |hash, number| mix(hash ^ mix(number)));
        let order = StreamOrder { seed, shuffle };
        Self::with(lanes, mixture, order, identity, false, &stop)
    }

    /// Each group once, in the order of the files, whatever the weights.
    pub(crate) fn once(lanes: &[Arc<Lane>]) -> Result<Self, DataError> {
        let order = StreamOrder { seed: 0, shuffle: false };
        Self::with(lanes, None, order, 0, true, &Arc::default())
    }

    fn with(
        lanes: &[Arc<Lane>],
        mixture: Option<Mixture>,
        order: StreamOrder,
        identity: u64,
        once: bool,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, DataError> {
        let start = |(index, lane): (usize, &Arc<Lane>)| {
            // Lanes must not be shuffled alike.
            let order = StreamOrder { seed: order.seed ^ mix(index as u64), ..order };
            LaneWalk::start(lane.clone(), order, once, stop.clone())
        };
        let lanes = lanes.iter().enumerate().map(start).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { lanes, mixture, identity, position: 0, chosen: 0, group: Vec::new(), looked: false })
    }

    pub(super) fn peek(&mut self) -> Result<Next, DataError> {
        if self.looked {
            return Ok(Next::Group);
        }
        if let Some(mixture) = &mut self.mixture {
            self.chosen = mixture.at(self.position).0;
        }
        loop {
            let lane = &mut self.lanes[self.chosen];
            match lane.peek()? {
                Next::Group => break,
                // The next lane, if this was one of several.
                Next::End if self.chosen + 1 < self.lanes.len() => self.chosen += 1,
                other => return Ok(other),
            }
        }
        let lane = &self.lanes[self.chosen];
        let (block, entries) = lane.current();
        let located = |entry: &Entry| Located { source: self.chosen as u32, block, entry: *entry };
        self.group.clear();
        self.group.extend(entries.iter().map(located));
        self.looked = true;
        Ok(Next::Group)
    }

    pub(super) fn advance(&mut self) {
        self.lanes[self.chosen].index += 1;
        self.position += 1;
        self.looked = false;
    }

    pub(super) fn begin_window(&mut self) {
        self.lanes.iter_mut().for_each(LaneWalk::begin_window);
    }

    pub(super) fn cursor(&self) -> Cursor {
        let lanes = self.lanes.iter().map(LaneWalk::cursor).collect();
        Cursor { groups: self.position, order: self.identity, lanes }
    }

    pub(super) fn seek(&mut self, cursor: &Cursor) -> Result<(), DataError> {
        if cursor.order != self.identity || cursor.lanes.len() != self.lanes.len() {
            return Err(DataError::OtherCursor);
        }
        for (lane, cursor) in self.lanes.iter_mut().zip(&cursor.lanes) {
            lane.seek(cursor);
        }
        self.position = cursor.groups;
        self.looked = false;
        Ok(())
    }

    pub(super) fn read(&mut self, located: &Located, tokens: &mut [i32], targets: &mut [i32]) -> Result<(), DataError> {
        self.lanes[located.source as usize].read(located, tokens, targets)
    }
}

/// One lane: the blocks held, where in them the next group is, and what is being filled.
struct LaneWalk {
    lane: Arc<Lane>,
    filler: Filler,
    /// Ends with the first epoch.
    once: bool,
    held: VecDeque<Block>,
    /// The number of the first block held, counted since the walk began.
    first: u64,
    /// Among the blocks held: the one in use, and the next group in it.
    at: usize,
    index: u64,
    /// What the filler is at.
    pending: VecDeque<BlockStart>,
    /// Where to go on when nothing is held.
    resume: LaneCursor,
    spare: Vec<Records>,
}

impl LaneWalk {
    fn start(lane: Arc<Lane>, order: StreamOrder, once: bool, stop: Arc<AtomicBool>) -> Result<Self, DataError> {
        let filler = Filler::start(lane.clone(), order, stop)?;
        let resume = LaneCursor { block: first_block(0, 0), index: 0 };
        let (held, pending, spare) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Ok(Self { lane, filler, once, held, first: 0, at: 0, index: 0, pending, resume, spare })
    }

    /// Makes sure that a group is there to look at.
    fn peek(&mut self) -> Result<Next, DataError> {
        let group = self.lane.group();
        loop {
            match self.held.get(self.at) {
                Some(block) if self.index < block.groups(group) => return Ok(Next::Group),
                Some(block) => {
                    let next = block.next;
                    if self.once && next.epoch > 0 {
                        return Ok(Next::End);
                    }
                    if self.at + 1 == self.held.len() {
                        if self.held.len() == HELD_MAX {
                            return Ok(Next::WindowFull);
                        }
                        self.fetch(next)?;
                    }
                    (self.at, self.index) = (self.at + 1, 0);
                }
                None if self.once && self.resume.block.epoch > 0 => return Ok(Next::End),
                None => {
                    let LaneCursor { block, index } = self.resume;
                    self.fetch(block)?;
                    (self.at, self.index) = (0, index);
                    if self.held[0].groups(group) < index {
                        return Err(DataError::OtherCursor);
                    }
                }
            }
        }
    }

    /// Waits for the block at `start` and has the one behind it filled meanwhile.
    fn fetch(&mut self, start: BlockStart) -> Result<(), DataError> {
        if self.pending.front() != Some(&start) {
            while self.pending.pop_front().is_some() {
                let block = self.filler.take()?;
                self.spare.push(block.records);
            }
            self.ask(start);
        }
        self.pending.pop_front();
        let block = self.filler.take()?;
        let next = block.next;
        self.held.push_back(block);
        if !(self.once && next.epoch > 0) {
            self.ask(next);
        }
        Ok(())
    }

    fn ask(&mut self, start: BlockStart) {
        let room = self.lane.block_bytes as usize;
        let records = self.spare.pop().unwrap_or_else(|| Records::with_room(room));
        self.filler.request(start, records);
        self.pending.push_back(start);
    }

    fn current(&self) -> (u64, &[Entry]) {
        let block = &self.held[self.at];
        (self.first + self.at as u64, block.group_at(self.index, self.lane.group()))
    }

    fn begin_window(&mut self) {
        for _ in 0..self.at {
            self.release_first();
        }
        self.at = 0;
        // A window begun behind a block must be the one begun before the next: a resumed run knows no difference.
        self.resume = self.cursor();
        if self.held.front().is_some_and(|block| block.start != self.resume.block) {
            self.release_first();
            self.index = 0;
        }
    }

    fn release_first(&mut self) {
        if let Some(block) = self.held.pop_front() {
            self.spare.push(block.records);
            self.first += 1;
        }
    }

    fn cursor(&self) -> LaneCursor {
        match self.held.get(self.at) {
            // Behind the last group of a block is before the first of the next one.
            Some(block) if self.index >= block.groups(self.lane.group()) => LaneCursor { block: block.next, index: 0 },
            Some(block) => LaneCursor { block: block.start, index: self.index },
            None => self.resume,
        }
    }

    /// What is held is not read again.
    fn seek(&mut self, cursor: &LaneCursor) {
        if let Some(at) = self.held.iter().position(|block| block.start == cursor.block) {
            (self.at, self.index) = (at, cursor.index);
            return;
        }
        while !self.held.is_empty() {
            self.release_first();
        }
        (self.at, self.index, self.resume) = (0, 0, *cursor);
    }

    fn read(&self, located: &Located, tokens: &mut [i32], targets: &mut [i32]) -> Result<(), DataError> {
        let block = self.held.get((located.block - self.first) as usize).ok_or(DataError::Malformed)?;
        block.records.read(&located.entry, self.lane.width(), tokens, targets).map_err(|_| DataError::Malformed)
    }
}
