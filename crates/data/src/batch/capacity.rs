//! Figures that each stream of a micro-batch has its own of.

use std::ops::Deref;

/// The most streams a micro-batch can have: what bears the loss, and what that is conditioned on.
pub const STREAMS_MAX: usize = 2;

/// One value for each stream, in the order of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerStream<T> {
    values: [T; STREAMS_MAX],
    count: usize,
}

impl<T: Copy> PerStream<T> {
    /// Of data with one stream.
    pub fn single(main: T) -> Self {
        Self { values: [main; STREAMS_MAX], count: 1 }
    }

    /// Of data with a source beside the stream that bears the loss.
    pub fn with_source(main: T, source: T) -> Self {
        Self { values: [main, source], count: 2 }
    }

    /// Of the stream that bears the loss.
    pub fn main(&self) -> T {
        self.values[0]
    }

    pub fn map<U: Copy>(&self, change: impl FnMut(T) -> U) -> PerStream<U> {
        PerStream { values: self.values.map(change), count: self.count }
    }
}

impl<T: Copy> From<T> for PerStream<T> {
    fn from(main: T) -> Self {
        Self::single(main)
    }
}

impl<T> Deref for PerStream<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[..self.count]
    }
}

/// What one stream of a micro-batch can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamCapacity {
    pub tokens: usize,
    pub sequences: usize,
}

/// What one micro-batch can hold of each stream.
pub type Capacity = PerStream<StreamCapacity>;

impl Capacity {
    /// Of a micro-batch with one stream.
    pub fn one(tokens: usize, sequences: usize) -> Self {
        Self::single(StreamCapacity { tokens, sequences })
    }

    /// The sequences that fit all streams: sequence `i` of one belongs to sequence `i` of the other.
    pub(crate) fn sequences(&self) -> usize {
        self.iter().map(|stream| stream.sequences).min().unwrap_or(0)
    }
}

/// The planned shape of one stream, for devices that compute every slot whether it holds a token or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillShape {
    pub tokens: usize,
    pub sequences: usize,
    pub max_length: usize,
}

/// The largest shape that a micro-batch of this capacity is ever filled up to: besides its own sequences those of the
/// filling, at most `max_length` tokens each, in groups.
pub(crate) fn filled_shape(capacity: &Capacity, max_length: &[usize], group: usize) -> PerStream<FillShape> {
    let lengths = max_length.iter().chain(max_length.last()).copied().cycle();
    let filling = capacity.iter().zip(lengths.clone()).map(|(stream, length)| stream.tokens.div_ceil(length.max(1)));
    let sequences = capacity.sequences() + group * filling.max().unwrap_or(0);
    let mut lengths = lengths;
    capacity.map(|stream| {
        let max_length = lengths.next().unwrap_or(1);
        FillShape { tokens: stream.tokens, sequences, max_length }
    })
}
