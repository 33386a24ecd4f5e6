//! One example as tokens and targets.

use crate::NO_LOSS;

/// A sequence and, for each position, the token that comes next or [`NO_LOSS`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Example {
    pub tokens: Vec<u32>,
    pub targets: Vec<i32>,
    /// What the sequence is conditioned on; empty where the content has one stream.
    pub source: Vec<u32>,
    /// Its class, where the content has labels.
    pub label: Option<i32>,
    /// For each position a number of its own or [`crate::NO_MARK`]; empty where the content has no marks.
    pub marks: Vec<f32>,
}

/// An example borrowed from where it is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExampleRef<'a> {
    pub tokens: &'a [u32],
    pub targets: &'a [i32],
    pub source: &'a [u32],
    pub label: Option<i32>,
    pub marks: &'a [f32],
}

impl Example {
    pub fn view(&self) -> ExampleRef<'_> {
        ExampleRef {
            tokens: &self.tokens,
            targets: &self.targets,
            source: &self.source,
            label: self.label,
            marks: &self.marks,
        }
    }
}

impl<'a> ExampleRef<'a> {
    /// The tokens of the main stream (0) or of the source (1).
    pub fn stream(&self, stream: usize) -> &'a [u32] {
        if stream == 0 { self.tokens } else { self.source }
    }

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
