//! An update's examples binned into micro-batches: for tests and measurements; training plans its updates from lengths
//! (`update`).

use super::bins::Bins;
use super::capacity::{Capacity, PerStream, STREAMS_MAX, StreamCapacity};
use super::micro_batch::MicroBatch;
use crate::error::DataError;
use crate::store::ExampleRef;

/// Bins the examples of one update. First fit, longest first, which wastes little; inside a micro-batch, and among them, the
/// order is that of the update, so the result depends on nothing but the examples and the capacity.
pub fn pack(
    examples: &[ExampleRef<'_>],
    max_length: impl Into<PerStream<usize>>,
    capacity: Capacity,
) -> Result<Vec<MicroBatch>, DataError> {
    pack_groups(examples, 1, max_length, capacity)
}

/// As [`pack`], with each `group` consecutive examples in one micro-batch, next to each other and in their order. A capacity
/// of two streams takes the examples' sources too.
///
/// # Panics
/// If the examples are not whole groups.
pub fn pack_groups(
    examples: &[ExampleRef<'_>],
    group: usize,
    max_length: impl Into<PerStream<usize>>,
    capacity: Capacity,
) -> Result<Vec<MicroBatch>, DataError> {
    let max_length = max_length.into();
    assert!(examples.len().is_multiple_of(group), "{} sequences are not groups of {group}", examples.len());
    check_streams(&max_length, &capacity)?;
    let groups = examples
        .chunks(group)
        .map(|members| members.iter().map(|example| [example.tokens.len(), example.source.len()]));
    for (number, members) in groups.clone().enumerate() {
        check_group_fits(members, number * group, group, &max_length, &capacity)?;
    }
    check_row_ids(examples.len() as u64, &max_length)?;
    let total = |stream: usize| {
        move |members: &[ExampleRef<'_>]| -> u32 {
            members.iter().map(|example| example.stream(stream).len() as u32).sum()
        }
    };
    let lengths: Vec<Vec<u32>> =
        (0..capacity.len()).map(|stream| examples.chunks(group).map(total(stream)).collect()).collect();
    let mut bins = Bins::default();
    bins.fill(&lengths, &capacity, capacity.sequences() / group);
    let batches = (0..bins.len()).map(|bin| {
        let marked = examples.iter().any(|example| !example.marks.is_empty());
        let mut batch = MicroBatch { marked, ..MicroBatch::with_capacity(&capacity.map(|_| EMPTY)) };
        for index in bins.members(bin).iter().flat_map(|&member| member as usize * group..(member as usize + 1) * group)
        {
            push(&mut batch, &examples[index], index, &max_length);
        }
        batch
    });
    Ok(batches.collect())
}

/// What `pack` makes grows as it is filled.
const EMPTY: StreamCapacity = StreamCapacity { tokens: 0, sequences: 0 };

/// Every number fits: `pack_groups` has checked that the update's last row id does.
fn push(batch: &mut MicroBatch, example: &ExampleRef<'_>, index: usize, max_length: &[usize]) {
    for (stream, max_length) in max_length.iter().enumerate() {
        let from = example.stream(stream);
        let copied: Result<(), std::convert::Infallible> =
            batch.append(stream, from.len(), (index * max_length) as u32, |tokens, beside| {
                tokens.iter_mut().zip(from).for_each(|(to, token)| *to = token.cast_signed());
                let main = beside.is_some();
                if let Some(beside) = beside {
                    beside.targets.copy_from_slice(example.targets);
                    beside.marks.iter_mut().zip(example.marks).for_each(|(to, mark)| *to = *mark);
                }
                Ok(example.label.filter(|_| main))
            });
        let Ok(()) = copied;
    }
}

/// The share of the micro-batches' token slots that hold a token, in the main stream.
pub fn fill_rate(batches: &[MicroBatch], capacity_tokens: usize) -> f64 {
    let slots = batches.len() * capacity_tokens;
    let used: usize = batches.iter().map(MicroBatch::len).sum();
    if slots == 0 { 1.0 } else { used as f64 / slots as f64 }
}

/// Lengths and capacities must be of the same streams.
pub(crate) fn check_streams(max_length: &PerStream<usize>, capacity: &Capacity) -> Result<(), DataError> {
    if max_length.len() != capacity.len() {
        let (lengths, streams) = (max_length.len(), capacity.len());
        let reason = format!("there are {lengths} greatest lengths for {streams} streams");
        return Err(DataError::Feed { reason });
    }
    Ok(())
}

/// A group that no micro-batch holds would never be reached. `members` are the lengths of each sequence in each stream,
/// `index` is the first one's number in the update.
pub(crate) fn check_group_fits(
    members: impl Iterator<Item = [usize; STREAMS_MAX]>,
    index: usize,
    group: usize,
    max_length: &[usize],
    capacity: &Capacity,
) -> Result<(), DataError> {
    let enough = capacity.sequences() >= group;
    let mut totals = [0; STREAMS_MAX];
    for (side, lengths) in members.enumerate() {
        for (stream, (&length, total)) in lengths.iter().zip(&mut totals).enumerate().take(capacity.len()) {
            let tokens = if enough { capacity[stream].tokens } else { 0 };
            let limit = max_length[stream].min(tokens);
            *total += length;
            // A source may be empty, and fits whatever the capacity; a main sequence never is.
            if length > limit || *total > tokens || (stream == 0 && !enough) {
                let length = length.max(*total);
                return Err(DataError::DoesNotFit { index: index + side, length, capacity: limit });
            }
        }
    }
    Ok(())
}

/// A token's name in an update has 32 bits.
pub(crate) fn check_row_ids(sequences: u64, max_length: &[usize]) -> Result<(), DataError> {
    let max_length = max_length.iter().copied().max().unwrap_or(0);
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
        Example { tokens: (0..len).map(name).collect(), targets: targets.collect(), ..Example::default() }
    }

    fn examples(lengths: &[usize]) -> Vec<Example> {
        let numbered = lengths.iter().enumerate();
        numbered.map(|(index, &len)| example(index, len)).collect()
    }

    fn packed(lengths: &[usize], tokens: usize, sequences: usize) -> Result<Vec<MicroBatch>, DataError> {
        let examples = examples(lengths);
        let views: Vec<_> = examples.iter().map(Example::view).collect();
        pack(&views, 64, Capacity::one(tokens, sequences))
    }

    #[test]
    fn longest_first_and_in_the_updates_order() {
        let batches = packed(&[2, 5, 3, 6], 8, 8).expect("fits");
        let ends: Vec<_> = batches.iter().map(|b| b.main().cu_seqlens.clone()).collect();
        assert_eq!(ends, [vec![0, 2, 8], vec![0, 5, 8]]);
        assert_eq!(batches[0].main().row_ids, [0, 1, 192, 193, 194, 195, 196, 197]);
        assert_eq!(batches[0].main().positions, [0, 1, 0, 1, 2, 3, 4, 5]);
        assert_eq!(batches[1].main().tokens[..5], [1000, 1001, 1002, 1003, 1004]);
        assert!((fill_rate(&batches, 8) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_fit_is_an_error() {
        for (lengths, tokens, sequences) in [(vec![3, 9], 8, 4), (vec![3], 8, 0), (vec![65], 100, 4)] {
            let error = packed(&lengths, tokens, sequences).expect_err("does not fit");
            assert!(matches!(error, DataError::DoesNotFit { .. }), "{error}");
        }
        let one = example(0, 1);
        let capacity = Capacity::one(8, 8);
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
                for bounds in batch.main().cu_seqlens.windows(2) {
                    let range = bounds[0] as usize..bounds[1] as usize;
                    let index = batch.main().tokens[range.start] as usize / 1000;
                    let whole = example(index, lengths[index]);
                    let got: Vec<u32> = batch.main().tokens[range.clone()].iter().map(|&t| t as u32).collect();
                    prop_assert_eq!(&got, &whole.tokens);
                    prop_assert_eq!(&batch.targets[range.clone()], &whole.targets[..]);
                    for (position, slot) in range.enumerate() {
                        prop_assert_eq!(batch.main().positions[slot] as usize, position);
                        prop_assert_eq!(batch.main().row_ids[slot] as usize, index * 64 + position);
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
            let batches = pack_groups(&views, 2, 64, Capacity::one(tokens, sequences)).expect("fits");
            let mut seen = vec![0; lengths.len()];
            for batch in &batches {
                prop_assert!(batch.len() <= tokens && batch.sequences() <= sequences);
                prop_assert!(batch.sequences().is_multiple_of(2));
                let first_of = |s: usize| batch.main().cu_seqlens[s] as usize;
                let index = |s: usize| batch.main().tokens[first_of(s)] as usize / 1000;
                for chosen in (0..batch.sequences()).step_by(2) {
                    prop_assert!(index(chosen).is_multiple_of(2));
                    prop_assert_eq!(index(chosen) + 1, index(chosen + 1));
                }
                for s in 0..batch.sequences() {
                    prop_assert_eq!(first_of(s + 1) - first_of(s), lengths[index(s)]);
                    prop_assert_eq!(batch.main().row_ids[first_of(s)] as usize, index(s) * 64);
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
