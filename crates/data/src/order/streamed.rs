//! Iterating over streams: chunk after chunk, each shuffled in itself.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::iteration::{Cursor, Located, Next, SourceCursor};
use super::mixture::Mixture;
use crate::error::DataError;
use crate::order::mix;
use crate::store::{Chunk, ChunkStart, Entry, Filler, PerToken, Records, StreamOrder, StreamSource, first_chunk};

/// Chunks of a source that a window may reach over.
const HELD_MAX: usize = 2;

pub(crate) struct StreamIteration {
    sources: Vec<SourceIteration>,
    mixture: Option<Mixture>,
    identity: u64,
    position: u64,
    /// The source of the group looked at.
    chosen: usize,
    pub group: Vec<Located>,
    looked: bool,
}

impl StreamIteration {
    pub(crate) fn new(
        sources: &[Arc<StreamSource>],
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
        Self::with(sources, mixture, order, identity, false, &stop)
    }

    /// Each group once, in the order of the files, whatever the weights.
    pub(crate) fn once(sources: &[Arc<StreamSource>]) -> Result<Self, DataError> {
        let order = StreamOrder { seed: 0, shuffle: false };
        Self::with(sources, None, order, 0, true, &Arc::default())
    }

    fn with(
        sources: &[Arc<StreamSource>],
        mixture: Option<Mixture>,
        order: StreamOrder,
        identity: u64,
        once: bool,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, DataError> {
        let start = |(index, source): (usize, &Arc<StreamSource>)| {
            // Sources must not be shuffled alike.
            let order = StreamOrder { seed: order.seed ^ mix(index as u64), ..order };
            SourceIteration::start(source.clone(), order, once, stop.clone())
        };
        let sources = sources.iter().enumerate().map(start).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { sources, mixture, identity, position: 0, chosen: 0, group: Vec::new(), looked: false })
    }

    pub(super) fn peek(&mut self) -> Result<Next, DataError> {
        if self.looked {
            return Ok(Next::Group);
        }
        if let Some(mixture) = &mut self.mixture {
            self.chosen = mixture.at(self.position).0;
        }
        loop {
            let source = &mut self.sources[self.chosen];
            match source.peek()? {
                Next::Group => break,
                // The next source, if this was one of several.
                Next::End if self.chosen + 1 < self.sources.len() => self.chosen += 1,
                other => return Ok(other),
            }
        }
        let source = &self.sources[self.chosen];
        let (chunk, entries) = source.current();
        let located = |entry: &Entry| Located { source: self.chosen as u32, chunk, entry: *entry };
        self.group.clear();
        self.group.extend(entries.iter().map(located));
        self.looked = true;
        Ok(Next::Group)
    }

    pub(super) fn advance(&mut self) {
        self.sources[self.chosen].index += 1;
        self.position += 1;
        self.looked = false;
    }

    pub(super) fn begin_window(&mut self) {
        self.sources.iter_mut().for_each(SourceIteration::begin_window);
    }

    pub(super) fn cursor(&self) -> Cursor {
        let sources = self.sources.iter().map(SourceIteration::cursor).collect();
        Cursor { groups: self.position, order: self.identity, sources }
    }

    pub(super) fn seek(&mut self, cursor: &Cursor) -> Result<(), DataError> {
        if cursor.order != self.identity || cursor.sources.len() != self.sources.len() {
            return Err(DataError::OtherCursor);
        }
        for (source, cursor) in self.sources.iter_mut().zip(&cursor.sources) {
            source.seek(cursor);
        }
        self.position = cursor.groups;
        self.looked = false;
        Ok(())
    }

    pub(super) fn read(
        &mut self,
        located: &Located,
        tokens: &mut [i32],
        beside: Option<PerToken<'_>>,
    ) -> Result<Option<i32>, DataError> {
        self.sources[located.source as usize].read(located, tokens, beside)
    }
}

/// One source: the chunks held, where in them the next group is, and what is being filled.
struct SourceIteration {
    source: Arc<StreamSource>,
    filler: Filler,
    /// Ends with the first epoch.
    once: bool,
    held: VecDeque<Chunk>,
    /// The number of the first chunk held, counted since the iteration began.
    first: u64,
    /// Among the chunks held: the one in use, and the next group in it.
    at: usize,
    index: u64,
    /// What the filler is at.
    pending: VecDeque<ChunkStart>,
    /// Where to go on when nothing is held.
    resume: SourceCursor,
    spare: Vec<Records>,
}

impl SourceIteration {
    fn start(
        source: Arc<StreamSource>,
        order: StreamOrder,
        once: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, DataError> {
        let filler = Filler::start(source.clone(), order, stop)?;
        let resume = SourceCursor { chunk: first_chunk(0, 0), index: 0 };
        let (held, pending, spare) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Ok(Self { source, filler, once, held, first: 0, at: 0, index: 0, pending, resume, spare })
    }

    /// Makes sure that a group is there to look at.
    fn peek(&mut self) -> Result<Next, DataError> {
        loop {
            match self.held.get(self.at) {
                Some(chunk) if self.index < chunk.groups() => return Ok(Next::Group),
                Some(chunk) => {
                    let next = chunk.next;
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
                None if self.once && self.resume.chunk.epoch > 0 => return Ok(Next::End),
                None => {
                    let SourceCursor { chunk, index } = self.resume;
                    self.fetch(chunk)?;
                    (self.at, self.index) = (0, index);
                    if self.held[0].groups() < index {
                        return Err(DataError::OtherCursor);
                    }
                }
            }
        }
    }

    /// Waits for the chunk at `start` and has the one behind it filled meanwhile.
    fn fetch(&mut self, start: ChunkStart) -> Result<(), DataError> {
        if self.pending.front() != Some(&start) {
            while self.pending.pop_front().is_some() {
                let chunk = self.filler.take()?;
                self.spare.push(chunk.records);
            }
            self.ask(start);
        }
        self.pending.pop_front();
        let chunk = self.filler.take()?;
        let next = chunk.next;
        self.held.push_back(chunk);
        if !(self.once && next.epoch > 0) {
            self.ask(next);
        }
        Ok(())
    }

    fn ask(&mut self, start: ChunkStart) {
        let capacity = self.source.chunk_bytes as usize;
        let records = self.spare.pop().unwrap_or_else(|| Records::with_capacity(capacity));
        self.filler.request(start, records);
        self.pending.push_back(start);
    }

    fn current(&self) -> (u64, &[Entry]) {
        let chunk = &self.held[self.at];
        (self.first + self.at as u64, chunk.group_at(self.index))
    }

    fn begin_window(&mut self) {
        for _ in 0..self.at {
            self.release_first();
        }
        self.at = 0;
        // A window begun behind a chunk must be the one begun before the next: a resumed run knows no difference.
        self.resume = self.cursor();
        if self.held.front().is_some_and(|chunk| chunk.start != self.resume.chunk) {
            self.release_first();
            self.index = 0;
        }
    }

    fn release_first(&mut self) {
        if let Some(chunk) = self.held.pop_front() {
            self.spare.push(chunk.records);
            self.first += 1;
        }
    }

    fn cursor(&self) -> SourceCursor {
        match self.held.get(self.at) {
            // Behind the last group of a chunk is before the first of the next one.
            Some(chunk) if self.index >= chunk.groups() => SourceCursor { chunk: chunk.next, index: 0 },
            Some(chunk) => SourceCursor { chunk: chunk.start, index: self.index },
            None => self.resume,
        }
    }

    /// What is held is not read again.
    fn seek(&mut self, cursor: &SourceCursor) {
        if let Some(at) = self.held.iter().position(|chunk| chunk.start == cursor.chunk) {
            (self.at, self.index) = (at, cursor.index);
            return;
        }
        while !self.held.is_empty() {
            self.release_first();
        }
        (self.at, self.index, self.resume) = (0, 0, *cursor);
    }

    fn read(
        &self,
        located: &Located,
        tokens: &mut [i32],
        beside: Option<PerToken<'_>>,
    ) -> Result<Option<i32>, DataError> {
        let chunk = self.held.get((located.chunk - self.first) as usize).ok_or(DataError::Malformed)?;
        chunk
            .records
            .read(&located.entry, self.source.layout().format, tokens, beside)
            .map_err(|_| DataError::Malformed)
    }
}
