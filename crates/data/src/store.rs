//! Where tokenised examples live: in memory, flat, with offsets.
//!
//! This is the part another store (a memory-mapped cache, a stream) replaces; what it hands out is [`ExampleRef`].

use crate::NO_LOSS;

/// A sequence and, for each position, the token that comes next or [`NO_LOSS`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Example {
    pub tokens: Vec<u32>,
    pub targets: Vec<i32>,
}

/// An example borrowed from where it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExampleRef<'a> {
    pub tokens: &'a [u32],
    pub targets: &'a [i32],
}

impl Example {
    pub fn view(&self) -> ExampleRef<'_> {
        ExampleRef { tokens: &self.tokens, targets: &self.targets }
    }
}

impl ExampleRef<'_> {
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub fn loss_tokens(&self) -> usize {
        count_loss(self.targets)
    }
}

pub(crate) fn count_loss(targets: &[i32]) -> usize {
    targets.iter().filter(|&&target| target != NO_LOSS).count()
}

/// Two flat vectors and the end of each example: eight bytes per token and eight per example.
#[derive(Debug, Default)]
pub(crate) struct Store {
    tokens: Vec<u32>,
    targets: Vec<i32>,
    ends: Vec<usize>,
    longest: usize,
}

impl Store {
    pub(crate) fn push(&mut self, example: ExampleRef<'_>) {
        assert_eq!(example.tokens.len(), example.targets.len());
        self.tokens.extend_from_slice(example.tokens);
        self.targets.extend_from_slice(example.targets);
        self.ends.push(self.tokens.len());
        self.longest = self.longest.max(example.len());
    }

    /// Gives back what growing took beyond need.
    pub(crate) fn finish(&mut self) {
        self.tokens.shrink_to_fit();
        self.targets.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn get(&self, index: usize) -> ExampleRef<'_> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        let range = start..self.ends[index];
        ExampleRef { tokens: &self.tokens[range.clone()], targets: &self.targets[range] }
    }

    pub(crate) fn total_tokens(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn loss_tokens(&self) -> usize {
        count_loss(&self.targets)
    }

    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn resident_bytes(&self) -> usize {
        size_of::<u32>() * self.tokens.capacity()
            + size_of::<i32>() * self.targets.capacity()
            + size_of::<usize>() * self.ends.capacity()
    }
}
