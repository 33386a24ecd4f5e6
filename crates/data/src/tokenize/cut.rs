//! From encoded rows to groups: what is too long is cut, left out or refused; pretraining's texts become one stream that
//! is cut into sequences.

use std::collections::VecDeque;

use super::encode::EncodedRow;
use super::pairs::{self, Cut};
use crate::content::Content;
use crate::dataset::{Options, OverLong};
use crate::error::{DataError, Place};
use crate::store::{Group, Layout, RecordFormat, Sequence};
use crate::tokenize::Counts;
use crate::tokenize::Masked;

/// Takes rows in, hands groups out. `At` is whatever tells the caller where a row came from.
pub(crate) struct Cutter<At> {
    content: Content,
    max_length: usize,
    max_source_length: usize,
    over_long: OverLong,
    /// Stays when a prompt is cut.
    bos: Option<u32>,
    format: RecordFormat,
    /// A row that has become one group.
    ready: Option<Ready>,
    /// `Content::Text`: tokens not yet cut off. Never more than one sequence and one row.
    stream: Vec<u32>,
    /// How much of the stream's beginning has been handed out.
    used: usize,
    /// The rows the stream's tokens come from, in order.
    spans: VecDeque<Span<At>>,
    /// Tokens of the next row that were handed out before.
    skip: usize,
    /// Groups handed out in this epoch, those before a resume included.
    pub emitted: u64,
}

enum Ready {
    One(Masked),
    Pair([Masked; 2]),
    Labelled(Vec<u32>, i32),
    /// The target begins with the decoder's start; its last token is only a target.
    SourceTarget {
        source: Vec<u32>,
        target: Vec<u32>,
    },
}

struct Span<At> {
    at: At,
    /// Tokens of the row before the stream's unused part.
    used: usize,
    length: usize,
}

impl<At: Copy> Cutter<At> {
    pub(crate) fn new(options: &Options, bos: Option<u32>, layout: Layout) -> Self {
        let Options { content, max_length, max_source_length, over_long, .. } = *options;
        Self {
            content,
            max_length,
            max_source_length,
            over_long,
            bos,
            format: layout.format,
            ready: None,
            stream: Vec::new(),
            used: 0,
            spans: VecDeque::new(),
            skip: 0,
            emitted: 0,
        }
    }

    /// Goes on behind the first `skip` tokens of the next row and `emitted` groups.
    pub(crate) fn resume(&mut self, skip: usize, emitted: u64) {
        (self.skip, self.emitted) = (skip, emitted);
    }

    /// The row in which the next group begins, and how many of its tokens come before; `None` where that is the next row
    /// to be pushed.
    pub(crate) fn origin(&self) -> Option<(At, usize)> {
        self.spans.front().map(|span| (span.at, span.used))
    }

    /// All groups of the row before must have been taken.
    pub(crate) fn push(
        &mut self,
        at: At,
        place: &Place,
        row: EncodedRow,
        counts: &mut Counts,
    ) -> Result<(), DataError> {
        counts.rows += 1;
        match row {
            EncodedRow::Pair(pair) => self.push_pair(place, pair, counts),
            EncodedRow::One(masked) if self.content.is_continuous() => {
                self.stream.drain(..std::mem::take(&mut self.used));
                let skip = std::mem::take(&mut self.skip).min(masked.tokens.len());
                self.stream.extend_from_slice(&masked.tokens[skip..]);
                if skip < masked.tokens.len() {
                    self.spans.push_back(Span { at, used: skip, length: masked.tokens.len() });
                }
                Ok(())
            }
            EncodedRow::One(masked) => self.push_whole(place, masked, counts),
            EncodedRow::Labelled(tokens, label) => self.push_labelled(place, tokens, label, counts),
            EncodedRow::SourceTarget { source, target } => self.push_source_target(place, source, target, counts),
        }
    }

    fn push_pair(&mut self, place: &Place, mut pair: [Masked; 2], counts: &mut Counts) -> Result<(), DataError> {
        let max_length = self.max_length;
        let length = pair.iter().map(|side| side.tokens.len()).max().unwrap_or(0);
        if pair[0].tokens == pair[1].tokens {
            counts.identical += 1;
            return Ok(());
        }
        let cut = match self.over_long {
            OverLong::Truncate => pairs::cut(&mut pair, max_length, self.bos),
            _ if length <= max_length => Cut::Fits,
            OverLong::Error => return Err(DataError::TooLong { at: place.clone(), length, max_length }),
            OverLong::Skip => Cut::TooLong,
        };
        if cut == Cut::TooLong || pair.iter().any(|side| side.tokens.is_empty()) {
            counts.skipped += 1;
            return Ok(());
        }
        counts.truncated += u64::from(cut == Cut::Shortened);
        self.ready = Some(Ready::Pair(pair));
        Ok(())
    }

    /// Makes a sequence fit as the policy says; `None` if its row is to be left out, else whether it was shortened.
    fn fit(
        &self,
        place: &Place,
        tokens: &mut Vec<u32>,
        max_length: usize,
        counts: &mut Counts,
    ) -> Result<Option<bool>, DataError> {
        let length = tokens.len();
        match self.over_long {
            _ if length <= max_length => Ok(Some(false)),
            OverLong::Error => Err(DataError::TooLong { at: place.clone(), length, max_length }),
            OverLong::Skip => {
                counts.skipped += 1;
                Ok(None)
            }
            OverLong::Truncate => {
                tokens.truncate(max_length);
                Ok(Some(true))
            }
        }
    }

    fn push_labelled(
        &mut self,
        place: &Place,
        mut tokens: Vec<u32>,
        label: i32,
        counts: &mut Counts,
    ) -> Result<(), DataError> {
        let Some(cut) = self.fit(place, &mut tokens, self.max_length, counts)? else { return Ok(()) };
        if tokens.is_empty() {
            counts.skipped += 1;
            return Ok(());
        }
        counts.truncated += u64::from(cut);
        self.ready = Some(Ready::Labelled(tokens, label));
        Ok(())
    }

    fn push_source_target(
        &mut self,
        place: &Place,
        mut source: Vec<u32>,
        mut target: Vec<u32>,
        counts: &mut Counts,
    ) -> Result<(), DataError> {
        let end = source.last().copied();
        let Some(cut_source) = self.fit(place, &mut source, self.max_source_length, counts)? else { return Ok(()) };
        if let (true, Some(end), Some(last)) = (cut_source, end, source.last_mut()) {
            // The encoder was made to expect an end; the decoder must not learn to stop where the answer goes on.
            *last = end;
        }
        let Some(cut_target) = self.fit(place, &mut target, self.max_length, counts)? else { return Ok(()) };
        if let Content::SourceTarget { decoder_start } = self.content {
            target.insert(0, decoder_start);
        }
        counts.truncated += u64::from(cut_source || cut_target);
        self.ready = Some(Ready::SourceTarget { source, target });
        Ok(())
    }

    fn push_whole(&mut self, place: &Place, mut masked: Masked, counts: &mut Counts) -> Result<(), DataError> {
        let Some(cut) = self.fit(place, &mut masked.tokens, self.max_length, counts)? else { return Ok(()) };
        masked.truncate(masked.tokens.len());
        // The first token is nobody's target.
        let learns = masked.learn.iter().skip(1).any(|&learn| learn);
        // What is left of a list that lost candidates is one as long as it compares two.
        if !learns || (self.content == Content::Candidates && masked.marks.len() < 2) {
            counts.skipped += 1;
            return Ok(());
        }
        counts.truncated += u64::from(cut);
        self.ready = Some(Ready::One(masked));
        Ok(())
    }

    /// Puts the next group in `group`; `false` if it needs another row.
    pub(crate) fn next(&mut self, group: &mut Group) -> bool {
        if self.content.is_continuous() {
            // One token beyond is needed: it is the last position's target.
            let rest = &self.stream[self.used..];
            if rest.len() <= self.max_length {
                return false;
            }
            let (tokens, closing) = (&rest[..self.max_length], Some(rest[self.max_length]));
            group.clear();
            group.push(&Sequence { bears: &|_| true, closing, ..Sequence::without_loss(tokens) }, self.format);
            self.use_up(self.max_length);
            self.emitted += 1;
            return true;
        }
        let Some(ready) = self.ready.take() else { return false };
        group.clear();
        match &ready {
            Ready::One(masked) => {
                group.push(&Sequence::of(masked, &|position| masked.learn[position + 1]), self.format)
            }
            Ready::Pair(pair) => {
                for side in pair {
                    let bears = |position: usize| self.content == Content::PairedAnswers && side.learn[position + 1];
                    group.push(&Sequence::of(side, &bears), self.format);
                }
            }
            Ready::Labelled(tokens, label) => {
                group.push(&Sequence { label: Some(*label), ..Sequence::without_loss(tokens) }, self.format);
            }
            Ready::SourceTarget { source, target } => {
                let (closing, tokens) = (target.last().copied(), &target[..target.len() - 1]);
                group.push(&Sequence { bears: &|_| true, closing, ..Sequence::without_loss(tokens) }, self.format);
                group.push(&Sequence::without_loss(source), self.format);
            }
        }
        self.emitted += 1;
        true
    }

    /// At the end of the rows: what is left of the stream becomes a sequence if it is full or the only one.
    pub(crate) fn close(&mut self, group: &mut Group, counts: &mut Counts) -> bool {
        let rest = &self.stream[self.used..];
        let last = rest.len() == self.max_length || (self.emitted == 0 && rest.len() > 1);
        if last {
            group.clear();
            group.push(&Sequence { bears: &|_| true, ..Sequence::without_loss(rest) }, self.format);
            self.emitted += 1;
        } else {
            counts.tail_tokens += rest.len() as u64;
        }
        self.stream.clear();
        self.used = 0;
        self.spans.clear();
        last
    }

    fn use_up(&mut self, tokens: usize) {
        self.used += tokens;
        let mut left = tokens;
        while let Some(span) = self.spans.front_mut() {
            let here = span.length - span.used;
            if left < here {
                span.used += left;
                return;
            }
            left -= here;
            self.spans.pop_front();
        }
    }
}
