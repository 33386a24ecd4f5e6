//! Flat micro-batches: in each stream sequences one behind another, no padding, none split.

use super::capacity::{Capacity, FillShape, StreamCapacity, filled_shape};
use crate::NO_LOSS;
use crate::store::{PerToken, count_loss};

/// The label of a sequence that only fills up a micro-batch.
pub const NO_LABEL: i32 = -1;

/// The mark of a token that has none; those that there are are not below zero.
pub const NO_MARK: f32 = -1.0;

/// One stream of flat tokens: sequences one behind another. All per-token vectors have the same length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenStream {
    pub tokens: Vec<i32>,
    /// Restart at 0 with each sequence.
    pub positions: Vec<i32>,
    /// The sequence's index in the update × the stream's `max_length` + position: names a token however the update was
    /// binned. Unsigned, and kernels read them so.
    pub row_ids: Vec<i32>,
    /// Where each sequence begins, and where the last one ends.
    pub cu_seqlens: Vec<i32>,
}

/// Sequences of one or more streams; sequence `i` of one stream belongs to sequence `i` of the others.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MicroBatch {
    /// Stream 0 is the one that bears the loss; stream 1, where there is one, is what it is conditioned on (the source of
    /// an encoder-decoder).
    pub streams: Vec<TokenStream>,
    /// Per token of stream 0: the next token or [`crate::NO_LOSS`].
    pub targets: Vec<i32>,
    /// Per token of stream 0: its weight in the loss; empty where all weigh one.
    pub weights: Vec<f32>,
    /// Per sequence of stream 0: its class; empty where the content has no labels.
    pub labels: Vec<i32>,
    /// Per token of stream 0: a number of its own or [`NO_MARK`]; empty where the content has no marks.
    pub marks: Vec<f32>,
    /// Whether the content has marks.
    pub marked: bool,
}

impl Default for TokenStream {
    fn default() -> Self {
        Self::with_capacity(0, 0)
    }
}

impl TokenStream {
    pub fn with_capacity(tokens: usize, sequences: usize) -> Self {
        let per_token = || Vec::with_capacity(tokens);
        let mut cu_seqlens = Vec::with_capacity(sequences + 1);
        cu_seqlens.push(0);
        Self { tokens: per_token(), positions: per_token(), row_ids: per_token(), cu_seqlens }
    }

    pub fn clear(&mut self) {
        for vector in [&mut self.tokens, &mut self.positions, &mut self.row_ids, &mut self.cu_seqlens] {
            vector.clear();
        }
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

    /// Ends a sequence whose tokens have been put behind the others. `first_row_id` is the id of its first token.
    fn close_sequence(&mut self, first_row_id: u32) {
        let length = self.tokens.len() - self.positions.len();
        self.positions.extend(0..length as i32);
        self.row_ids.extend((0..length as u32).map(|position| (first_row_id + position).cast_signed()));
        self.cu_seqlens.push(self.tokens.len() as i32);
    }

    /// A sequence of token 0, then empty ones that make it a group.
    fn fill_group(&mut self, length: usize, group: usize) {
        self.tokens.resize(self.tokens.len() + length, 0);
        self.positions.extend(0..length as i32);
        self.row_ids.resize(self.tokens.len(), 0);
        let end = self.tokens.len() as i32;
        self.cu_seqlens.extend(std::iter::repeat_n(end, group));
    }
}

impl MicroBatch {
    /// With capacity for all it may ever hold: filling it again and again never allocates.
    pub fn with_capacity(capacity: &Capacity) -> Self {
        let streams = capacity.iter().map(|stream| TokenStream::with_capacity(stream.tokens, stream.sequences));
        let main = capacity.main();
        Self {
            streams: streams.collect(),
            targets: Vec::with_capacity(main.tokens),
            weights: Vec::new(),
            labels: Vec::with_capacity(main.sequences),
            marks: Vec::new(),
            marked: false,
        }
    }

    /// As [`MicroBatch::with_capacity`], also for what [`MicroBatch::fill_up`] puts behind the sequences.
    pub fn with_filled_capacity(capacity: &Capacity, max_length: &[usize], group: usize, marked: bool) -> Self {
        let capacity = filled_capacity(capacity, max_length, group);
        let marks = Vec::with_capacity(if marked { capacity.main().tokens } else { 0 });
        Self { marks, marked, ..Self::with_capacity(&capacity) }
    }

    pub fn clear(&mut self) {
        self.streams.iter_mut().for_each(TokenStream::clear);
        self.targets.clear();
        self.weights.clear();
        self.labels.clear();
        self.marks.clear();
    }

    /// The stream that bears the loss.
    ///
    /// # Panics
    /// Without streams, as only `MicroBatch::default()` is.
    pub fn main(&self) -> &TokenStream {
        &self.streams[0]
    }

    /// Tokens of the main stream.
    pub fn len(&self) -> usize {
        self.main().len()
    }

    pub fn is_empty(&self) -> bool {
        self.main().is_empty()
    }

    pub fn sequences(&self) -> usize {
        self.main().sequences()
    }

    /// How many positions bear loss.
    pub fn loss_tokens(&self) -> usize {
        count_loss(&self.targets)
    }

    /// Appends a sequence to a stream; `read` writes its tokens and, for the main stream, what they have beside, and returns
    /// its label if it has one.
    pub(crate) fn append<E>(
        &mut self,
        stream: usize,
        length: usize,
        first_row_id: u32,
        read: impl FnOnce(&mut [i32], Option<PerToken<'_>>) -> Result<Option<i32>, E>,
    ) -> Result<(), E> {
        let target = &mut self.streams[stream];
        let begin = target.tokens.len();
        target.tokens.resize(begin + length, 0);
        let label = if stream == 0 {
            self.targets.resize(begin + length, 0);
            if self.marked {
                self.marks.resize(begin + length, NO_MARK);
            }
            let marks = self.marks.get_mut(begin..).unwrap_or_default();
            read(&mut target.tokens[begin..], Some(PerToken { targets: &mut self.targets[begin..], marks }))?
        } else {
            read(&mut target.tokens[begin..], None)?
        };
        self.labels.extend(label);
        target.close_sequence(first_row_id);
        Ok(())
    }

    /// Takes every slot of the planned shape: the rest of each stream becomes sequences of token 0 without loss, and then
    /// empty ones. Where sequences come in groups, each filling one is followed by empty ones, so that the group does not
    /// count. Never allocates on a batch made for it.
    ///
    /// # Panics
    /// If the batch does not fit the shape.
    pub fn fill_up(&mut self, shape: &[FillShape], group: usize) {
        assert_eq!(shape.len(), self.streams.len(), "a shape for each stream");
        let rest_of = |(stream, shape): (&TokenStream, &FillShape)| {
            let rest = shape.tokens.checked_sub(stream.len());
            (rest.expect("the micro-batch has more tokens than its shape"), shape.max_length)
        };
        let groups_for = |(rest, max_length): (usize, usize)| rest.div_ceil(max_length.max(1));
        let rests = || self.streams.iter().zip(shape).map(rest_of);
        let groups = rests().map(groups_for).max().unwrap_or(0);
        let sequences = shape[0].sequences;
        let own = self.sequences();
        assert!(own + groups * group <= sequences, "{own} sequences and {groups} to fill up exceed {sequences}");
        for (stream, shape) in self.streams.iter_mut().zip(shape) {
            let (rest, max_length) = rest_of((&*stream, shape));
            let needed = groups_for((rest, max_length));
            for index in 0..groups {
                // A stream that would need fewer sequences spreads its rest, so that as few as possible are empty.
                let even = rest / groups + usize::from(index < rest % groups);
                let left = shape.tokens - stream.len();
                let length = if needed == groups { left.min(max_length) } else { even };
                stream.fill_group(length, group);
            }
            stream.cu_seqlens.resize(sequences + 1, shape.tokens as i32);
        }
        self.targets.resize(shape[0].tokens, NO_LOSS);
        if !self.weights.is_empty() {
            self.weights.resize(shape[0].tokens, 0.0);
        }
        if self.marked {
            self.marks.resize(shape[0].tokens, NO_MARK);
        }
        if !self.labels.is_empty() {
            self.labels.resize(sequences, NO_LABEL);
        }
    }

    /// What one made by [`MicroBatch::with_filled_capacity`] takes in memory.
    pub(crate) fn filled_bytes(capacity: &Capacity, max_length: &[usize], group: usize, marked: bool) -> u64 {
        let capacity = filled_capacity(capacity, max_length, group);
        let streams: usize = capacity.iter().map(|stream| 3 * stream.tokens + stream.sequences + 1).sum();
        let main = capacity.main();
        let marks = if marked { main.tokens } else { 0 };
        (size_of::<i32>() * (streams + main.tokens + marks + main.sequences)) as u64
    }
}

fn filled_capacity(capacity: &Capacity, max_length: &[usize], group: usize) -> Capacity {
    filled_shape(capacity, max_length, group)
        .map(|FillShape { tokens, sequences, .. }| StreamCapacity { tokens, sequences })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::PerStream;
    use proptest::prelude::*;

    /// Sequences with the given lengths in each stream.
    fn batch(capacity: &Capacity, max_length: &[usize], group: usize, lengths: &[Vec<usize>]) -> MicroBatch {
        let mut batch = MicroBatch::with_filled_capacity(capacity, max_length, group, true);
        for (number, lengths) in lengths.iter().enumerate() {
            for (stream, &length) in lengths.iter().enumerate() {
                let first = (number * max_length[stream]) as u32;
                let done: Result<(), ()> = batch.append(stream, length, first, |tokens, beside| {
                    tokens.fill(5);
                    beside.into_iter().for_each(|beside| {
                        beside.targets.fill(6);
                        beside.marks.fill(0.5);
                    });
                    Ok((stream == 0).then_some(number as i32))
                });
                done.expect("fits");
            }
        }
        batch
    }

    /// The vectors' places in memory and how much they hold.
    fn places(batch: &MicroBatch) -> Vec<(*const u8, usize)> {
        let streams = batch.streams.iter().flat_map(|s| [&s.tokens, &s.positions, &s.row_ids, &s.cu_seqlens]);
        let numbers = streams.chain([&batch.targets, &batch.labels]);
        let numbers = numbers.map(|vector| (vector.as_ptr().cast(), vector.capacity()));
        numbers.chain([(batch.marks.as_ptr().cast(), batch.marks.capacity())]).collect()
    }

    #[test]
    fn one_stream_is_filled_with_whole_sequences_and_then_empty_ones() {
        let capacity = Capacity::one(20, 3);
        let mut batch = batch(&capacity, &[8], 1, &[vec![3], vec![7]]);
        batch.fill_up(&[FillShape { tokens: 20, sequences: 6, max_length: 8 }], 1);
        assert_eq!(batch.main().cu_seqlens, [0, 3, 10, 18, 20, 20, 20]);
        assert_eq!(batch.main().positions[8..], [5, 6, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1]);
        assert_eq!(batch.main().row_ids[9..12], [14, 0, 0]);
        assert_eq!((batch.loss_tokens(), batch.targets.len()), (10, 20));
        assert_eq!(batch.labels, [0, 1, -1, -1, -1, -1]);
        assert_eq!((batch.marks.len(), batch.marks[9], batch.marks[10]), (20, 0.5, NO_MARK));
    }

    #[test]
    fn in_groups_each_filling_sequence_stands_beside_empty_ones() {
        let capacity = Capacity::one(20, 2);
        let mut batch = batch(&capacity, &[8], 2, &[vec![3], vec![6]]);
        batch.fill_up(&[FillShape { tokens: 20, sequences: 8, max_length: 8 }], 2);
        assert_eq!(batch.main().cu_seqlens, [0, 3, 9, 17, 17, 20, 20, 20, 20]);
    }

    #[test]
    fn two_streams_keep_equal_numbers_of_sequences() {
        let stream = |tokens| StreamCapacity { tokens, sequences: 4 };
        let capacity = PerStream::with_source(stream(10), stream(30));
        let mut batch = batch(&capacity, &[4, 10], 1, &[vec![1, 9], vec![2, 1]]);
        batch.weights = vec![1.0; 3];
        let shape = [(10, 4), (30, 10)].map(|(tokens, max_length)| FillShape { tokens, sequences: 7, max_length });
        batch.fill_up(&shape, 1);
        assert_eq!(batch.streams[0].cu_seqlens, [0, 1, 3, 7, 10, 10, 10, 10]);
        assert_eq!(batch.streams[1].cu_seqlens, [0, 9, 10, 20, 30, 30, 30, 30]);
        assert_eq!((batch.weights.len(), batch.weights[2], batch.weights[3]), (10, 1.0, 0.0));
    }

    proptest! {
        #[test]
        fn filling_never_allocates_and_keeps_what_was_there(
            lengths in prop::collection::vec((1usize..=6, 0usize..=9), 0..8), group in 1usize..3, two: bool, spare in 0usize..40,
        ) {
            let count = lengths.len() / group * group;
            let streams = if two { 2 } else { 1 };
            let lengths: Vec<Vec<usize>> = lengths[..count].iter().map(|&(a, b)| [a, b][..streams].to_vec()).collect();
            let of = |stream: usize| {
                let tokens = lengths.iter().map(|l| l[stream]).sum::<usize>() + spare * (stream + 1) / 2;
                StreamCapacity { tokens: tokens.max(1), sequences: count + 2 * group }
            };
            let capacity = if two { PerStream::with_source(of(0), of(1)) } else { PerStream::single(of(0)) };
            let max_length = [6, 9];
            let mut batch = batch(&capacity, &max_length[..streams], group, &lengths);
            let shape = filled_shape(&capacity, &max_length[..streams], group);
            let (before, own) = (places(&batch), batch.clone());
            batch.fill_up(&shape, group);
            prop_assert!(places(&batch) == before, "it allocated");
            for ((stream, own), shape) in batch.streams.iter().zip(&own.streams).zip(shape.iter()) {
                prop_assert_eq!(stream.len(), shape.tokens);
                prop_assert_eq!(stream.sequences(), shape.sequences);
                prop_assert_eq!(&stream.tokens[..own.len()], &own.tokens[..]);
                prop_assert_eq!(&stream.cu_seqlens[..own.cu_seqlens.len()], &own.cu_seqlens[..]);
                prop_assert!(stream.cu_seqlens.windows(2).all(|ends| (0..=shape.max_length as i32).contains(&(ends[1] - ends[0]))));
                prop_assert_eq!((stream.positions.len(), stream.row_ids.len()), (shape.tokens, shape.tokens));
            }
            prop_assert_eq!(batch.loss_tokens(), own.loss_tokens());
            let filling = batch.main().cu_seqlens[count..].windows(2).map(|ends| ends[1] - ends[0]);
            prop_assert!(filling.enumerate().all(|(index, length)| index % group == 0 || length == 0));
            batch.clear();
            prop_assert!(batch.is_empty() && batch.labels.is_empty() && places(&batch) == before);
        }
    }
}
