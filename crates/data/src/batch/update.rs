//! An update planned from lengths alone: which groups it has, and how they are binned.
//!
//! Groups are binned window by window, so that an update of any size is planned in the same memory. All of it is a
//! function of the cursor and the settings; an update of one window is planned once, a larger one again while it is filled.

use super::bins::{Bins, bins_bytes};
use super::capacity::{Capacity, PerStream, STREAMS_MAX};
use super::micro_batch::MicroBatch;
use super::pack::{check_group_fits, check_row_ids};
use crate::error::DataError;
use crate::order::{Cursor, Iteration, Located, Next};

/// Groups planned at a time.
pub(crate) const WINDOW_GROUPS: usize = 1 << 14;

/// How much an update has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// Exactly so many sequences, whole groups.
    Sequences(u64),
    /// Groups in order while they fit, at least one; tokens of the main stream.
    Tokens(u64),
}

/// What stays the same from update to update.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub amount: Amount,
    pub capacity: Capacity,
    pub max_length: PerStream<usize>,
    /// Sequences that only mean something together.
    pub group: usize,
    pub rank: u64,
    pub ranks: u64,
}

/// What is known about an update before its first micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateHead {
    /// Micro-batches of this rank.
    pub micro_batches: u64,
    /// Of all ranks together; tokens are those of the main stream.
    pub sequences: u64,
    pub tokens: u64,
    /// Of the stream the main one is conditioned on.
    pub source_tokens: u64,
    pub loss_tokens: u64,
    /// Of this rank.
    pub own_sequences: u64,
    pub own_tokens: u64,
    /// The share of this rank's token slots in the main stream that hold a token.
    pub fill_rate: f64,
    /// Behind the update.
    pub cursor: Cursor,
}

/// Sums over the groups of an update taken so far.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    groups: u64,
    tokens: u64,
    source_tokens: u64,
    loss_tokens: u64,
    own_groups: u64,
    own_tokens: u64,
}

/// Plans updates one after another.
pub(crate) struct Planner {
    pub iteration: Iteration,
    rules: Rules,
    sums: Sums,
    /// Of this rank's groups in the window: sequences, lengths, and which of the update they are.
    located: Vec<Located>,
    lengths: [Vec<u32>; STREAMS_MAX],
    numbers: Vec<u32>,
    bins: Bins,
    /// Where the update begins, while it has to be planned again.
    again: Option<Cursor>,
    /// Where an update that is planned twice ends: its last windows may have nothing for this rank, and then the second
    /// pass does not come that far.
    end: Option<Cursor>,
    /// The update's last window has been planned.
    complete: bool,
    next_bin: usize,
}

/// What planning holds.
pub(crate) fn planner_bytes(amount: Amount, group: usize, streams: usize) -> u64 {
    let groups = match amount {
        Amount::Sequences(sequences) => (sequences / group as u64).min(WINDOW_GROUPS as u64),
        // At least one token each.
        Amount::Tokens(tokens) => tokens.min(WINDOW_GROUPS as u64),
    };
    let per_group = group * streams * size_of::<Located>() + (1 + streams) * size_of::<u32>();
    groups * per_group as u64 + bins_bytes(groups, streams)
}

impl Planner {
    pub(crate) fn new(iteration: Iteration, rules: Rules) -> Self {
        Self {
            iteration,
            rules,
            sums: Sums::default(),
            located: Vec::new(),
            lengths: Default::default(),
            numbers: Vec::new(),
            bins: Bins::default(),
            again: None,
            end: None,
            complete: true,
            next_bin: 0,
        }
    }

    /// Plans the next update and stands before its first micro-batch.
    pub(crate) fn plan(&mut self) -> Result<UpdateHead, DataError> {
        self.again = None;
        if let Some(end) = self.end.take() {
            self.iteration.seek(&end)?;
        }
        let start = self.iteration.cursor();
        self.sums = Sums::default();
        let (mut micro_batches, mut windows) = (0, 0);
        loop {
            self.plan_window()?;
            micro_batches += self.bins.len() as u64;
            windows += 1;
            if self.complete {
                break;
            }
        }
        let Sums { groups, tokens, source_tokens, loss_tokens, own_groups, own_tokens } = self.sums;
        let Rules { group, capacity, max_length, .. } = self.rules;
        check_row_ids(groups * group as u64, &max_length)?;
        let slots = micro_batches as f64 * capacity.main().tokens as f64;
        let head = UpdateHead {
            micro_batches,
            sequences: groups * group as u64,
            tokens,
            source_tokens,
            loss_tokens,
            own_sequences: own_groups * group as u64,
            own_tokens,
            fill_rate: if slots > 0.0 { own_tokens as f64 / slots } else { 1.0 },
            cursor: self.iteration.cursor(),
        };
        if windows > 1 {
            self.again = Some(start);
            self.end = Some(head.cursor.clone());
        }
        Ok(head)
    }

    /// Takes groups until the window or the update is full, and bins those of this rank.
    fn plan_window(&mut self) -> Result<(), DataError> {
        self.iteration.begin_window();
        self.located.clear();
        self.lengths.iter_mut().for_each(Vec::clear);
        self.numbers.clear();
        self.complete = false;
        let mut taken = 0;
        while taken < WINDOW_GROUPS {
            if self.is_full() {
                self.complete = true;
                break;
            }
            match self.iteration.peek()? {
                Next::Group => {}
                Next::WindowFull => break,
                Next::End => return Err(DataError::Stopped),
            }
            if !self.take()? {
                self.complete = true;
                break;
            }
            taken += 1;
        }
        self.complete |= self.is_full();
        let Rules { capacity, group, .. } = self.rules;
        self.bins.fill(&self.lengths, &capacity, capacity.sequences() / group);
        self.next_bin = 0;
        Ok(())
    }

    fn is_full(&self) -> bool {
        match self.rules.amount {
            Amount::Sequences(sequences) => self.sums.groups * self.rules.group as u64 >= sequences,
            Amount::Tokens(tokens) => self.sums.tokens >= tokens && self.sums.groups > 0,
        }
    }

    /// Takes the group looked at; `false` if it is too much for the update.
    fn take(&mut self) -> Result<bool, DataError> {
        let Rules { amount, rank, ranks, .. } = self.rules;
        let records = self.iteration.group();
        let streams = self.rules.capacity.len();
        check_fits(records, &self.rules, self.sums.groups)?;
        let total = |stream: usize| -> u64 {
            records.iter().skip(stream).step_by(streams).map(|located| u64::from(located.entry.tokens)).sum()
        };
        let tokens = total(0);
        let sums = &mut self.sums;
        if let Amount::Tokens(limit) = amount
            && sums.groups > 0
            && sums.tokens + tokens > limit
        {
            return Ok(false);
        }
        if sums.groups % ranks == rank {
            self.located.extend_from_slice(records);
            for (stream, lengths) in self.lengths[..streams].iter_mut().enumerate() {
                lengths.push(total(stream) as u32);
            }
            self.numbers.push(sums.groups as u32);
            sums.own_groups += 1;
            sums.own_tokens += tokens;
        }
        sums.groups += 1;
        sums.tokens += tokens;
        sums.source_tokens += (1..streams).map(total).sum::<u64>();
        sums.loss_tokens += records.iter().map(|located| u64::from(located.entry.loss)).sum::<u64>();
        self.iteration.advance();
        Ok(true)
    }

    /// Fills the update's next micro-batch; `false` when there are no more.
    pub(crate) fn fill(&mut self, batch: &mut MicroBatch) -> Result<bool, DataError> {
        if let Some(start) = self.again.take() {
            self.iteration.seek(&start)?;
            self.sums = Sums::default();
            self.plan_window()?;
        }
        while self.next_bin == self.bins.len() {
            if self.complete {
                return Ok(false);
            }
            self.plan_window()?;
        }
        let Rules { group, max_length, .. } = self.rules;
        let per_group = group * max_length.len();
        batch.clear();
        for &member in self.bins.members(self.next_bin) {
            let member = member as usize;
            let first = self.numbers[member] * group as u32;
            let records = &self.located[member * per_group..(member + 1) * per_group];
            let row_id = |sequence: usize, stream: usize| (first + sequence as u32) * max_length[stream] as u32;
            self.iteration.read_into(batch, records, row_id)?;
        }
        self.next_bin += 1;
        Ok(true)
    }
}

/// A group that no micro-batch holds would never be reached.
fn check_fits(records: &[Located], rules: &Rules, number: u64) -> Result<(), DataError> {
    let Rules { capacity, max_length, group, .. } = rules;
    let lengths = |records: &[Located]| {
        std::array::from_fn(|stream| records.get(stream).map_or(0, |located| located.entry.tokens as usize))
    };
    let members = records.chunks(capacity.len()).map(lengths);
    check_group_fits(members, number as usize * group, *group, max_length, capacity)
}
