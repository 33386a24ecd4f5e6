//! An update's sequences binned into flat micro-batches: one behind another, no padding, none split.

use super::bins::Bins;
use crate::error::DataError;
use crate::store::{ExampleRef, count_loss};

/// What one micro-batch can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    pub tokens: usize,
    pub sequences: usize,
}

/// Sequences one behind another. All per-token vectors have the same length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MicroBatch {
    pub tokens: Vec<i32>,
    /// The next token or [`crate::NO_LOSS`].
    pub targets: Vec<i32>,
    /// Restart at 0 with each sequence.
    pub positions: Vec<i32>,
    /// The sequence's index in the update × `max_length` + position: names a token however the update was binned.
    pub row_ids: Vec<i32>,
    /// Where each sequence begins, and where the last one ends.
    pub cu_seqlens: Vec<i32>,
}

impl MicroBatch {
    /// With room for all it may ever hold: filling it again and again never allocates.
    pub fn with_capacity(capacity: Capacity) -> Self {
        let per_token = || Vec::with_capacity(capacity.tokens);
        let mut cu_seqlens = Vec::with_capacity(capacity.sequences + 1);
        cu_seqlens.push(0);
        Self { tokens: per_token(), targets: per_token(), positions: per_token(), row_ids: per_token(), cu_seqlens }
    }

    fn empty() -> Self {
        Self { cu_seqlens: vec![0], ..Self::default() }
    }

    pub fn clear(&mut self) {
        for vector in [&mut self.tokens, &mut self.targets, &mut self.positions, &mut self.row_ids] {
            vector.clear();
        }
        self.cu_seqlens.clear();
        self.cu_seqlens.push(0);
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub fn sequences(&self) -> usize {
        self.cu_seqlens.len() - 1
    }

    /// How many positions bear loss.
    pub fn loss_tokens(&self) -> usize {
        count_loss(&self.targets)
    }

    /// Appends a sequence whose tokens and targets `read` writes. `first_row_id` is the id of its first token; ids are
    /// unsigned, and kernels read them so.
    pub(crate) fn append<E>(
        &mut self,
        length: usize,
        first_row_id: u32,
        read: impl FnOnce(&mut [i32], &mut [i32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let begin = self.tokens.len();
        self.tokens.resize(begin + length, 0);
        self.targets.resize(begin + length, 0);
        read(&mut self.tokens[begin..], &mut self.targets[begin..])?;
        self.positions.extend(0..length as i32);
        self.row_ids.extend((0..length as u32).map(|position| (first_row_id + position).cast_signed()));
        self.cu_seqlens.push(self.tokens.len() as i32);
        Ok(())
    }

    /// Every number fits: `pack` has checked that the update's last row id does.
    fn push(&mut self, example: ExampleRef<'_>, first_row_id: usize) {
        let copied: Result<(), std::convert::Infallible> =
            self.append(example.len(), first_row_id as u32, |tokens, targets| {
                tokens.iter_mut().zip(example.tokens).for_each(|(to, token)| *to = token.cast_signed());
                targets.copy_from_slice(example.targets);
                Ok(())
            });
        let Ok(()) = copied;
    }

    /// What one takes in memory.
    pub(crate) fn bytes(capacity: Capacity) -> u64 {
        (size_of::<i32>() * (4 * capacity.tokens + capacity.sequences + 1)) as u64
    }
}

/// Bins the examples of one update. First fit, longest first, which wastes little; inside a micro-batch, and among them, the
/// order is that of the update, so the result depends on nothing but the examples and the capacity.
pub fn pack(examples: &[ExampleRef<'_>], max_length: usize, capacity: Capacity) -> Result<Vec<MicroBatch>, DataError> {
    pack_groups(examples, 1, max_length, capacity)
}

/// As [`pack`], with each `group` consecutive examples in one micro-batch, next to each other and in their order.
///
/// # Panics
/// If the examples are not whole groups.
pub fn pack_groups(
    examples: &[ExampleRef<'_>],
    group: usize,
    max_length: usize,
    capacity: Capacity,
) -> Result<Vec<MicroBatch>, DataError> {
    assert!(examples.len().is_multiple_of(group), "{} sequences are not groups of {group}", examples.len());
    check_fits(examples, group, max_length, capacity)?;
    let lengths: Vec<u32> = examples.chunks(group).map(|members| total(members) as u32).collect();
    let mut bins = Bins::default();
    bins.fill(&lengths, Capacity { sequences: capacity.sequences / group, ..capacity });
    let batches = (0..bins.len()).map(|bin| {
        let mut batch = MicroBatch::empty();
        for index in bins.members(bin).iter().flat_map(|&member| member as usize * group..(member as usize + 1) * group)
        {
            batch.push(examples[index], index * max_length);
        }
        batch
    });
    Ok(batches.collect())
}

fn total(examples: &[ExampleRef<'_>]) -> usize {
    examples.iter().map(ExampleRef::len).sum()
}

/// The share of the micro-batches' token slots that hold a token.
pub fn fill_rate(batches: &[MicroBatch], capacity_tokens: usize) -> f64 {
    let slots = batches.len() * capacity_tokens;
    let used: usize = batches.iter().map(MicroBatch::len).sum();
    if slots == 0 { 1.0 } else { used as f64 / slots as f64 }
}

fn check_fits(
    examples: &[ExampleRef<'_>],
    group: usize,
    max_length: usize,
    capacity: Capacity,
) -> Result<(), DataError> {
    let tokens = if capacity.sequences < group { 0 } else { capacity.tokens };
    let limit = tokens.min(max_length);
    for (index, example) in examples.iter().enumerate() {
        if example.len() > limit {
            return Err(DataError::DoesNotFit { index, length: example.len(), capacity: limit });
        }
    }
    for (index, members) in examples.chunks(group).enumerate() {
        let length = total(members);
        if length > tokens {
            return Err(DataError::DoesNotFit { index: index * group, length, capacity: tokens });
        }
    }
    check_row_ids(examples.len() as u64, max_length)
}

/// A token's name in an update has 32 bits.
pub(crate) fn check_row_ids(sequences: u64, max_length: usize) -> Result<(), DataError> {
    let end = sequences.checked_mul(max_length as u64);
    if end.is_none_or(|end| end > 1 << 32) {
        return Err(DataError::TooManyTokens { sequences, max_length });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Example, NO_LOSS};
    use proptest::prelude::*;

    /// Tokens that tell which sequence and position they are.
    fn example(index: usize, len: usize) -> Example {
        let name = |position: usize| (index * 1000 + position) as u32;
        let targets = (0..len).map(|p| if p % 3 == 0 { NO_LOSS } else { name(p + 1) as i32 });
        Example { tokens: (0..len).map(name).collect(), targets: targets.collect() }
    }

    fn examples(lengths: &[usize]) -> Vec<Example> {
        let numbered = lengths.iter().enumerate();
        numbered.map(|(index, &len)| example(index, len)).collect()
    }

    fn packed(lengths: &[usize], tokens: usize, sequences: usize) -> Result<Vec<MicroBatch>, DataError> {
        let examples = examples(lengths);
        let views: Vec<_> = examples.iter().map(Example::view).collect();
        pack(&views, 64, Capacity { tokens, sequences })
    }

    #[test]
    fn longest_first_and_in_the_updates_order() {
        let batches = packed(&[2, 5, 3, 6], 8, 8).expect("fits");
        let ends: Vec<_> = batches.iter().map(|b| b.cu_seqlens.clone()).collect();
        assert_eq!(ends, [vec![0, 2, 8], vec![0, 5, 8]]);
        assert_eq!(batches[0].row_ids, [0, 1, 192, 193, 194, 195, 196, 197]);
        assert_eq!(batches[0].positions, [0, 1, 0, 1, 2, 3, 4, 5]);
        assert_eq!(batches[1].tokens[..5], [1000, 1001, 1002, 1003, 1004]);
        assert!((fill_rate(&batches, 8) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_fit_is_an_error() {
        for (lengths, tokens, sequences) in [(vec![3, 9], 8, 4), (vec![3], 8, 0), (vec![65], 100, 4)] {
            let error = packed(&lengths, tokens, sequences).expect_err("does not fit");
            assert!(matches!(error, DataError::DoesNotFit { .. }), "{error}");
        }
        let one = example(0, 1);
        let capacity = Capacity { tokens: 8, sequences: 8 };
        let error = pack(&[one.view(); 5], 1 << 30, capacity).expect_err("too many");
        assert!(matches!(error, DataError::TooManyTokens { .. }), "{error}");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_split_or_over_the_line(
            lengths in prop::collection::vec(1usize..=20, 1..60), tokens in 20usize..100, sequences in 1usize..8,
        ) {
            let batches = packed(&lengths, tokens, sequences).expect("fits");
            let mut seen = vec![0; lengths.len()];
            for batch in &batches {
                prop_assert!(batch.len() <= tokens && batch.sequences() <= sequences);
                for bounds in batch.cu_seqlens.windows(2) {
                    let range = bounds[0] as usize..bounds[1] as usize;
                    let index = batch.tokens[range.start] as usize / 1000;
                    let whole = example(index, lengths[index]);
                    let got: Vec<u32> = batch.tokens[range.clone()].iter().map(|&t| t as u32).collect();
                    prop_assert_eq!(&got, &whole.tokens);
                    prop_assert_eq!(&batch.targets[range.clone()], &whole.targets[..]);
                    for (position, slot) in range.enumerate() {
                        prop_assert_eq!(batch.positions[slot] as usize, position);
                        prop_assert_eq!(batch.row_ids[slot] as usize, index * 64 + position);
                    }
                    seen[index] += 1;
                }
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
            let loss: usize = batches.iter().map(MicroBatch::loss_tokens).sum();
            let expected: usize = examples(&lengths).iter().map(|e| e.view().loss_tokens()).sum();
            prop_assert_eq!(loss, expected);
            prop_assert_eq!(batches, packed(&lengths, tokens, sequences).expect("fits again"));
        }

        #[test]
        fn groups_stay_together(
            halves in prop::collection::vec((1usize..=20, 1usize..=20), 1..30), tokens in 40usize..120, sequences in 2usize..9,
        ) {
            let lengths: Vec<usize> = halves.iter().flat_map(|&(a, b)| [a, b]).collect();
            let examples = examples(&lengths);
            let views: Vec<_> = examples.iter().map(Example::view).collect();
            let batches = pack_groups(&views, 2, 64, Capacity { tokens, sequences }).expect("fits");
            let mut seen = vec![0; lengths.len()];
            for batch in &batches {
                prop_assert!(batch.len() <= tokens && batch.sequences() <= sequences);
                prop_assert!(batch.sequences().is_multiple_of(2));
                let first_of = |s: usize| batch.cu_seqlens[s] as usize;
                let index = |s: usize| batch.tokens[first_of(s)] as usize / 1000;
                for chosen in (0..batch.sequences()).step_by(2) {
                    prop_assert!(index(chosen).is_multiple_of(2));
                    prop_assert_eq!(index(chosen) + 1, index(chosen + 1));
                }
                for s in 0..batch.sequences() {
                    prop_assert_eq!(first_of(s + 1) - first_of(s), lengths[index(s)]);
                    prop_assert_eq!(batch.row_ids[first_of(s)] as usize, index(s) * 64);
                    seen[index(s)] += 1;
                }
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
        }

        /// First fit never leaves two bins that could be one, as far as tokens go.
        #[test]
        fn little_is_wasted(lengths in prop::collection::vec(1usize..=20, 1..60), tokens in 20usize..100) {
            let batches = packed(&lengths, tokens, usize::MAX).expect("fits");
            let light = batches.iter().filter(|batch| 2 * batch.len() <= tokens).count();
            prop_assert!(light <= 1);
        }
    }
}
