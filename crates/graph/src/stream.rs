//! Streams: a micro-batch holds one or more runs of flat tokens, each with its own sequence boundaries.

use std::ops::Index;

/// One of the streams of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StreamId(pub u8);

impl StreamId {
    /// The stream that bears the loss: the only one of a decoder, the target of an encoder-decoder.
    pub const MAIN: StreamId = StreamId(0);
    /// What the main stream is conditioned on: the source of an encoder-decoder.
    pub const SOURCE: StreamId = StreamId(1);
}

/// Most streams that a micro-batch has.
pub const STREAMS_MAX: usize = 2;

/// Something of every stream of a micro-batch, the main stream's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Streams<T> {
    items: [T; STREAMS_MAX],
    count: usize,
}

impl<T: Copy> Streams<T> {
    /// Of a micro-batch with the main stream alone.
    pub const fn one(main: T) -> Self {
        Self { items: [main; STREAMS_MAX], count: 1 }
    }

    /// # Panics
    /// Without a main stream, or with more than [`STREAMS_MAX`].
    pub fn new(all: &[T]) -> Self {
        assert!((1..=STREAMS_MAX).contains(&all.len()), "a micro-batch has 1 to {STREAMS_MAX} streams");
        let mut items = [all[0]; STREAMS_MAX];
        items[..all.len()].copy_from_slice(all);
        Self { items, count: all.len() }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn main(&self) -> T {
        self.items[0]
    }

    pub fn as_slice(&self) -> &[T] {
        &self.items[..self.count]
    }

    pub fn iter(&self) -> impl Iterator<Item = (StreamId, T)> {
        self.as_slice().iter().enumerate().map(|(index, &item)| (StreamId(index as u8), item))
    }

    pub fn map<U: Copy>(&self, change: impl Fn(T) -> U) -> Streams<U> {
        Streams { items: self.items.map(change), count: self.count }
    }
}

impl<T: Copy> Index<StreamId> for Streams<T> {
    type Output = T;

    fn index(&self, stream: StreamId) -> &T {
        &self.as_slice()[stream.0 as usize]
    }
}
