//! A sequence in few bytes: what all of memory, cache and stream hold.
//!
//! ```text
//! number of runs · length of each run · tokens
//! ```
//!
//! Runs (variable-length numbers) say in turn how many positions bear no loss and how many do. A token takes two bytes
//! where the vocabulary allows, else four. A position's target is the token behind it; where the last position bears
//! loss, one token more is kept for it.

use crate::NO_LOSS;

/// Where a sequence lies, and what a plan needs to know about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    pub offset: u64,
    pub bytes: u32,
    pub tokens: u32,
    /// Positions that bear loss.
    pub loss: u32,
    /// Of the record's bytes, where they are kept in a file.
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

/// A sequence about to be kept: `bears` says which positions bear loss, `closing` is the last one's target.
pub(crate) struct Sequence<'a> {
    pub tokens: &'a [u32],
    pub bears: &'a dyn Fn(usize) -> bool,
    pub closing: Option<u32>,
}

/// The most bytes a sequence of `tokens` tokens can take: every position a run of its own.
pub(crate) fn bytes_max(tokens: usize, width: Width) -> usize {
    10 + 2 * tokens + (tokens + 1) * width.bytes()
}

/// Appends a sequence's record. The entry's offset is where it begins in `out`.
pub(crate) fn write(sequence: &Sequence<'_>, width: Width, out: &mut Vec<u8>) -> Entry {
    let Sequence { tokens, bears, closing } = sequence;
    let (offset, count) = (out.len(), tokens.len());
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
    for token in tokens.iter().chain(closing) {
        match width {
            Width::Two => out.extend_from_slice(&(*token as u16).to_le_bytes()),
            Width::Four => out.extend_from_slice(&token.to_le_bytes()),
        }
    }
    Entry { offset: offset as u64, bytes: (out.len() - offset) as u32, tokens: count as u32, loss, checksum: 0 }
}

/// The record is not what was written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads a record into the slices of a micro-batch; both have the sequence's length.
pub(crate) fn read(record: &[u8], width: Width, tokens: &mut [i32], targets: &mut [i32]) -> Result<(), Malformed> {
    let count = tokens.len();
    let mut rest = record;
    let runs = take_number(&mut rest)?;
    let (mut begin, mut bearing) = (0, false);
    // Marked first, filled in below: the tokens stand behind the runs.
    for _ in 0..runs {
        let end = begin + take_number(&mut rest)?;
        let run = targets.get_mut(begin..end).ok_or(Malformed)?;
        run.fill(if bearing { 0 } else { NO_LOSS });
        (begin, bearing) = (end, !bearing);
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
    for (target, &next) in targets.iter_mut().zip(tokens.iter().skip(1).chain(&last)) {
        if *target != NO_LOSS {
            *target = next;
        }
    }
    Ok(())
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
    /// Room for `bytes` in all, however they divide between records and entries. Only what is used becomes resident.
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
        width: Width,
        tokens: &mut [i32],
        targets: &mut [i32],
    ) -> Result<(), Malformed> {
        let range = entry.offset as usize..entry.offset as usize + entry.bytes as usize;
        read(self.bytes.get(range).ok_or(Malformed)?, width, tokens, targets)
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

    pub(crate) fn push(&mut self, sequence: &Sequence<'_>, width: Width) {
        let entry = write(sequence, width, &mut self.bytes);
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

    fn round_trip(tokens: &[u32], learn: &[bool], closing: Option<u32>, width: Width) -> (Vec<i32>, Vec<i32>, Entry) {
        let mut out = vec![9; 3];
        let bears = |position: usize| learn[position];
        let entry = write(&Sequence { tokens, bears: &bears, closing }, width, &mut out);
        assert!(entry.bytes as usize <= bytes_max(tokens.len(), width));
        let (mut got, mut targets) = (vec![7; tokens.len()], vec![7; tokens.len()]);
        read(&out[entry.offset as usize..], width, &mut got, &mut targets).expect("well formed");
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
            let _ = read(&bytes, Width::Two, &mut tokens, &mut targets);
            bytes.truncate(bytes.len() / 2);
            let _ = read(&bytes, Width::Four, &mut tokens, &mut targets);
        }
    }
}
