//! A sequence in few bytes: what all of memory, cache and stream hold.
//!
//! ```text
//! label · number of runs · length of each run · marks · tokens
//! ```
//!
//! Runs (variable-length numbers) say in turn how many positions bear no loss and how many do. A token takes two bytes
//! where the vocabulary allows, else four. A position's target is the token behind it; where the last position bears
//! loss, one token more is stored for it. The label, four bytes, is only there where the content has labels, and so are
//! marks: how many, and for each the positions since the one before and four bytes.
//!
//! An example has one record per stream; those of its streams lie one behind another, as do the examples of a group.

use twox_hash::XxHash3_64;

use crate::NO_LOSS;
use crate::batch::{NO_LABEL, NO_MARK};
use crate::dataset::Options;
use crate::tokenize::{Masked, Tokenizer};

/// Where a sequence lies, and what a plan needs to know about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    pub offset: u64,
    pub bytes: u32,
    pub tokens: u32,
    /// Positions that bear loss.
    pub loss: u32,
    /// Of the record's bytes.
    pub checksum: u32,
}

/// How wide a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    Two,
    Four,
}

impl Width {
    pub(crate) fn of(vocab_size: usize) -> Self {
        if vocab_size <= 1 << 16 { Self::Two } else { Self::Four }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }
}

/// How records are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordFormat {
    pub width: Width,
    pub labelled: bool,
    pub marked: bool,
}

/// How the records of a dataset are written and belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub format: RecordFormat,
    /// Sequences that only mean something together.
    pub group: usize,
    /// Records of each sequence.
    pub streams: usize,
}

impl Layout {
    pub(crate) fn of(tokenizer: &Tokenizer, options: &Options) -> Self {
        let content = options.content;
        let width = Width::of(tokenizer.vocab_size().max(content.token_ids()));
        let format = RecordFormat { width, labelled: content.has_labels(), marked: content.has_marks() };
        Self { format, group: content.group(), streams: content.streams() }
    }

    pub(crate) fn records_per_group(&self) -> usize {
        self.group * self.streams
    }

    /// The most bytes a group can take, with its entries.
    pub(crate) fn group_bytes_max(&self, max_length: &[usize]) -> u64 {
        let of = |&length: &usize| bytes_max(length, self.format) + size_of::<Entry>();
        (self.group * max_length.iter().map(of).sum::<usize>()) as u64
    }
}

/// A sequence about to be stored: `bears` says which positions bear loss, `closing` is the last one's target.
pub(crate) struct Sequence<'a> {
    pub tokens: &'a [u32],
    pub bears: &'a dyn Fn(usize) -> bool,
    pub closing: Option<u32>,
    pub label: Option<i32>,
    /// Positions that have a number of their own, in order.
    pub marks: &'a [(usize, f32)],
}

impl<'a> Sequence<'a> {
    /// None of its positions bears loss.
    pub(crate) fn without_loss(tokens: &'a [u32]) -> Self {
        Self { tokens, bears: &|_| false, closing: None, label: None, marks: &[] }
    }

    /// Position `i` is to predict token `i + 1`, if that one is to be learnt.
    pub(crate) fn of(masked: &'a Masked, bears: &'a dyn Fn(usize) -> bool) -> Self {
        Self { bears, marks: &masked.marks, ..Self::without_loss(&masked.tokens) }
    }
}

/// The most bytes a sequence of `tokens` tokens can take: every position a run of its own.
pub(crate) fn bytes_max(tokens: usize, format: RecordFormat) -> usize {
    let label = if format.labelled { LABEL_BYTES } else { 0 };
    let marks = if format.marked { 5 + tokens * (1 + size_of::<f32>()) } else { 0 };
    10 + label + marks + 2 * tokens + (tokens + 1) * format.width.bytes()
}

const LABEL_BYTES: usize = size_of::<i32>();

/// Appends a sequence's record. The entry's offset is where it begins in `out`.
pub(crate) fn write(sequence: &Sequence<'_>, format: RecordFormat, out: &mut Vec<u8>) -> Entry {
    let Sequence { tokens, bears, closing, label, marks } = sequence;
    let (offset, count) = (out.len(), tokens.len());
    if format.labelled {
        out.extend_from_slice(&label.unwrap_or(NO_LABEL).to_le_bytes());
    }
    let bears = |position: usize| if position + 1 == count { closing.is_some() } else { bears(position) };
    let mut run_ends: Vec<usize> = Vec::new();
    let mut loss = 0;
    let mut bearing = false;
    for position in 0..count {
        if bears(position) != bearing {
            run_ends.push(position);
            bearing = !bearing;
        }
        loss += u32::from(bearing);
    }
    run_ends.push(count);
    put_number(run_ends.len(), out);
    let mut before = 0;
    for end in run_ends {
        put_number(end - before, out);
        before = end;
    }
    if format.marked {
        put_number(marks.len(), out);
        let mut before = 0;
        for (position, mark) in *marks {
            put_number(position - before, out);
            out.extend_from_slice(&mark.to_le_bytes());
            before = *position;
        }
    }
    for token in tokens.iter().chain(closing) {
        match format.width {
            Width::Two => out.extend_from_slice(&(*token as u16).to_le_bytes()),
            Width::Four => out.extend_from_slice(&token.to_le_bytes()),
        }
    }
    let (bytes, checksum) = ((out.len() - offset) as u32, checksum(&out[offset..]));
    Entry { offset: offset as u64, bytes, tokens: count as u32, loss, checksum }
}

pub(super) fn checksum(bytes: &[u8]) -> u32 {
    XxHash3_64::oneshot(bytes) as u32
}

/// The record is not what was written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// What each token of the main stream has beside itself.
pub(crate) struct PerToken<'a> {
    pub targets: &'a mut [i32],
    /// Empty where the content has no marks.
    pub marks: &'a mut [f32],
}

/// Reads a record into the slices of a micro-batch, which have the sequence's length. Only the main stream has more than
/// tokens. Returns the label, if records have one.
pub(crate) fn read(
    record: &[u8],
    format: RecordFormat,
    tokens: &mut [i32],
    beside: Option<PerToken<'_>>,
) -> Result<Option<i32>, Malformed> {
    let (mut targets, marks) = beside.map_or((None, None), |beside| (Some(beside.targets), Some(beside.marks)));
    let (count, width) = (tokens.len(), format.width);
    let mut rest = record;
    let label = if format.labelled { Some(take_label(&mut rest)?) } else { None };
    let runs = take_number(&mut rest)?;
    let (mut begin, mut bearing) = (0, false);
    // Marked first, filled in below: the tokens stand behind the runs.
    for _ in 0..runs {
        let end = begin + take_number(&mut rest)?;
        if end > count {
            return Err(Malformed);
        }
        if let Some(targets) = &mut targets {
            targets[begin..end].fill(if bearing { 0 } else { NO_LOSS });
        }
        (begin, bearing) = (end, !bearing);
    }
    if format.marked {
        take_marks(&mut rest, count, marks)?;
    }
    // `bearing` has been turned over behind the last run.
    let closing = runs > 0 && !bearing;
    if begin != count || rest.len() != (count + usize::from(closing)) * width.bytes() {
        return Err(Malformed);
    }
    let take = |into: &mut [i32], from: &[u8]| match width {
        Width::Two => {
            for (to, bytes) in into.iter_mut().zip(from.chunks_exact(2)) {
                *to = i32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            }
        }
        Width::Four => {
            for (to, bytes) in into.iter_mut().zip(from.chunks_exact(4)) {
                *to = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
        }
    };
    take(tokens, rest);
    let mut last = [NO_LOSS];
    take(&mut last, &rest[count * width.bytes()..]);
    for (target, &next) in targets.into_iter().flatten().zip(tokens.iter().skip(1).chain(&last)) {
        if *target != NO_LOSS {
            *target = next;
        }
    }
    Ok(label)
}

fn take_marks(from: &mut &[u8], tokens: usize, marks: Option<&mut [f32]>) -> Result<(), Malformed> {
    let mut marks = marks.filter(|marks| marks.len() == tokens);
    if let Some(marks) = &mut marks {
        marks.fill(NO_MARK);
    }
    let mut position = 0;
    for _ in 0..take_number(from)? {
        position += take_number(from)?;
        let (mark, rest) = from.split_first_chunk().ok_or(Malformed)?;
        *from = rest;
        if position >= tokens {
            return Err(Malformed);
        }
        if let Some(marks) = &mut marks {
            marks[position] = f32::from_le_bytes(*mark);
        }
    }
    Ok(())
}

fn take_label(from: &mut &[u8]) -> Result<i32, Malformed> {
    let (label, rest) = from.split_first_chunk().ok_or(Malformed)?;
    *from = rest;
    Ok(i32::from_le_bytes(*label))
}

fn put_number(mut number: usize, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push((number & 0x7F) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(from: &mut &[u8]) -> Result<usize, Malformed> {
    let mut number = 0usize;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = from.split_first().ok_or(Malformed)?;
        *from = rest;
        number |= usize::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(Malformed)
}

/// Records one behind another, in memory.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub bytes: Vec<u8>,
    pub entries: Vec<Entry>,
}

impl Records {
    /// Capacity for `bytes` in all, however they divide between records and entries. Only what is used becomes resident.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        let smallest = size_of::<Entry>() + 4;
        Self { bytes: Vec::with_capacity(bytes), entries: Vec::with_capacity(bytes / smallest) }
    }

    pub(crate) fn push(&mut self, group: &Group) {
        let base = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&group.bytes);
        self.entries.extend(group.entries.iter().map(|entry| Entry { offset: base + entry.offset, ..*entry }));
    }

    pub(crate) fn read(
        &self,
        entry: &Entry,
        format: RecordFormat,
        tokens: &mut [i32],
        beside: Option<PerToken<'_>>,
    ) -> Result<Option<i32>, Malformed> {
        let range = entry.offset as usize..entry.offset as usize + entry.bytes as usize;
        read(self.bytes.get(range).ok_or(Malformed)?, format, tokens, beside)
    }

    /// Takes some of its consecutive records out as a group again.
    pub(crate) fn copy_group(&self, entries: &[Entry], group: &mut Group) {
        group.clear();
        for entry in entries {
            let offset = group.bytes.len() as u64;
            group.bytes.extend_from_slice(&self.bytes[entry.offset as usize..][..entry.bytes as usize]);
            group.entries.push(Entry { offset, ..*entry });
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Filled so far.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>()
    }

    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        (self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()) as u64
    }
}

/// Sequences that only mean something together, as records; offsets begin at 0.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub bytes: Vec<u8>,
    pub entries: Vec<Entry>,
}

impl Group {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    pub(crate) fn push(&mut self, sequence: &Sequence<'_>, format: RecordFormat) {
        let entry = write(sequence, format, &mut self.bytes);
        self.entries.push(entry);
    }

    /// As [`Records::size`] counts.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.entries.len() * size_of::<Entry>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn format(width: Width) -> RecordFormat {
        RecordFormat { width, labelled: false, marked: false }
    }

    fn round_trip(tokens: &[u32], learn: &[bool], closing: Option<u32>, width: Width) -> (Vec<i32>, Vec<i32>, Entry) {
        let mut out = vec![9; 3];
        let bears = |position: usize| learn[position];
        let entry =
            write(&Sequence { bears: &bears, closing, ..Sequence::without_loss(tokens) }, format(width), &mut out);
        assert!(entry.bytes as usize <= bytes_max(tokens.len(), format(width)));
        let (mut got, mut targets) = (vec![7; tokens.len()], vec![7; tokens.len()]);
        let beside = PerToken { targets: &mut targets, marks: &mut [] };
        let read = read(&out[entry.offset as usize..], format(width), &mut got, Some(beside));
        assert_eq!(read, Ok(None));
        (got, targets, entry)
    }

    #[test]
    fn plain_cases() {
        let (tokens, targets, entry) = round_trip(&[5, 6, 7], &[false, true, true], None, Width::Two);
        assert_eq!((tokens, targets), (vec![5, 6, 7], vec![NO_LOSS, 7, NO_LOSS]));
        assert_eq!((entry.tokens, entry.loss, entry.bytes), (3, 1, 1 + 3 + 6));
        let (_, targets, entry) = round_trip(&[5, 6, 7], &[true; 3], Some(8), Width::Four);
        assert_eq!((targets, entry.loss, entry.bytes), (vec![6, 7, 8], 3, 1 + 2 + 16));
        let (_, targets, _) = round_trip(&[65_535], &[true], None, Width::Two);
        assert_eq!(targets, [NO_LOSS]);
    }

    proptest! {
        #[test]
        fn labels_and_streams_without_targets_are_read(
            tokens in prop::collection::vec(0u32..60_000, 0..50), label in prop::option::of(0i32..i32::MAX), learn: bool,
        ) {
            let format = RecordFormat { width: Width::Two, labelled: true, marked: false };
            let sequence = Sequence { label, bears: &|_| learn, ..Sequence::without_loss(&tokens) };
            let mut out = Vec::new();
            let entry = write(&sequence, format, &mut out);
            prop_assert_eq!((entry.tokens as usize, entry.bytes as usize), (tokens.len(), out.len()));
            prop_assert!(out.len() <= bytes_max(tokens.len(), format));
            let mut got = vec![7; tokens.len()];
            prop_assert_eq!(read(&out, format, &mut got, None), Ok(Some(label.unwrap_or(NO_LABEL))));
            prop_assert!(got.iter().zip(&tokens).all(|(a, b)| *a == *b as i32));
        }

        #[test]
        fn marks_are_read(marks in prop::collection::vec(prop::option::of(0f32..9.0), 1..300)) {
            let format = RecordFormat { width: Width::Two, labelled: false, marked: true };
            let tokens = vec![3; marks.len()];
            let sparse: Vec<(usize, f32)> = marks.iter().enumerate().filter_map(|(i, mark)| Some((i, (*mark)?))).collect();
            let mut out = Vec::new();
            write(&Sequence { marks: &sparse, ..Sequence::without_loss(&tokens) }, format, &mut out);
            prop_assert!(out.len() <= bytes_max(tokens.len(), format));
            let count = tokens.len();
            let (mut got, mut targets, mut read_marks) = (vec![7; count], vec![7; count], vec![7.0; count]);
            let beside = PerToken { targets: &mut targets, marks: &mut read_marks };
            prop_assert_eq!(read(&out, format, &mut got, Some(beside)), Ok(None));
            let expected: Vec<f32> = marks.into_iter().map(|mark| mark.unwrap_or(NO_MARK)).collect();
            prop_assert_eq!(read_marks, expected);
            prop_assert!(got.iter().all(|&token| token == 3));
        }

        #[test]
        fn what_is_written_is_read(
            content in prop::collection::vec((0u32..70_000, any::<bool>()), 1..400), closing in prop::option::of(0u32..70_000),
        ) {
            let (tokens, learn): (Vec<u32>, Vec<bool>) = content.into_iter().unzip();
            let narrow = tokens.iter().chain(&closing).all(|&t| t < 1 << 16);
            for width in [Width::Two, Width::Four].into_iter().filter(|w| narrow || *w == Width::Four) {
                let (got, targets, entry) = round_trip(&tokens, &learn, closing, width);
                prop_assert_eq!(got, tokens.iter().map(|&t| t as i32).collect::<Vec<_>>());
                let mut expected: Vec<i32> = (1..tokens.len())
                    .map(|p| if learn[p - 1] { tokens[p] as i32 } else { NO_LOSS })
                    .collect();
                expected.push(closing.map_or(NO_LOSS, |t| t as i32));
                prop_assert_eq!(entry.loss as usize, expected.iter().filter(|t| **t != NO_LOSS).count());
                prop_assert_eq!(targets, expected);
            }
        }

        #[test]
        fn damage_is_an_error_or_another_sequence_but_never_a_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..60), count in 0usize..30,
        ) {
            let (mut tokens, mut targets) = (vec![0; count], vec![0; count]);
            let _ = read(&bytes, format(Width::Two), &mut tokens, Some(PerToken { targets: &mut targets, marks: &mut [] }));
            bytes.truncate(bytes.len() / 2);
            let _ = read(&bytes, RecordFormat { width: Width::Four, labelled: true, marked: true }, &mut tokens, None);
        }
    }
}
