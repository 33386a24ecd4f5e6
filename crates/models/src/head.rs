//! What stands on top of a model: the rows it reads, the weights it has of its own, and the loss it makes of them.

use std::fmt::Debug;

use plimsoll_graph::{Graph, GraphError, ValueId};

/// Which rows of the last hidden state a head reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadRows {
    /// Every token's.
    Tokens,
    /// Those of sequences' last tokens. Behind the last attention nothing else is computed then.
    LastTokens,
}

/// A weight of the head `[rows, hidden size]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadWeight {
    /// Hugging Face's name.
    pub name: String,
    pub rows: usize,
}

/// One part of the loss, which is a mean of its own.
#[derive(Debug, Clone, Copy)]
pub struct LossTerm {
    /// The part's weight, over what it is a mean of in the whole update.
    pub scale: ValueId,
    pub loss: ValueId,
}

/// The values a head makes its loss of.
pub struct LossOperands<'a> {
    pub graph: &'a mut Graph,
    /// A row for each token, or for each sequence.
    pub hidden: ValueId,
    /// The vocabulary projection, for heads that use it.
    pub vocabulary: Option<ValueId>,
    /// In the order of [`Head::weights`].
    pub weights: Vec<ValueId>,
    /// Of each token of the main stream: the next one, or less than zero.
    pub targets: ValueId,
    /// Of each sequence of the main stream, for heads that take labels.
    pub labels: Option<ValueId>,
    /// Of each token of the main stream, for heads that take marks.
    pub marks: Option<ValueId>,
    /// What [`Head::reference`] made, for heads that have one.
    pub reference: Option<ValueId>,
    /// Of the main stream.
    pub boundaries: ValueId,
    /// As many as [`Head::terms`] says.
    pub terms: Vec<LossTerm>,
    /// As many numbers as [`Head::stats`] says.
    pub stats: Option<ValueId>,
    pub softcap: Option<f32>,
    /// Into how many chunks logits are divided.
    pub chunks: usize,
    /// Whether gradients follow. A head may leave results for the host where none do.
    pub training: bool,
}

/// The values a head compares the model with itself by.
pub struct ReferenceOperands<'a> {
    pub graph: &'a mut Graph,
    /// What the model makes without its adapters.
    pub hidden: ValueId,
    pub vocabulary: ValueId,
    pub targets: ValueId,
    pub boundaries: ValueId,
    pub softcap: Option<f32>,
    pub chunks: usize,
}

/// A head and its loss.
pub trait Head: Debug + Send + Sync {
    fn rows(&self) -> HeadRows;

    /// Whether it uses the model's projection onto the vocabulary, so that the model can make text.
    fn uses_vocabulary(&self) -> bool {
        false
    }

    /// Weights of its own, which learn whatever the method unless they are frozen by name.
    fn weights(&self) -> Vec<HeadWeight> {
        Vec::new()
    }

    /// Whether sequences have labels.
    fn has_labels(&self) -> bool {
        false
    }

    /// Whether tokens have marks: numbers that the data gives some of them.
    fn has_marks(&self) -> bool {
        false
    }

    /// Whether the loss compares the model with what it was before training.
    fn has_reference(&self) -> bool {
        false
    }

    /// What the loss takes of the model as it was. Only called for heads that say they have a reference.
    fn reference(&self, _operands: ReferenceOperands) -> Result<ValueId, GraphError> {
        unreachable!("this head has no reference")
    }

    /// Parts of the loss.
    fn terms(&self) -> usize {
        1
    }

    /// Numbers that the loss counts on the way, in double precision.
    fn stats(&self) -> usize {
        0
    }

    /// Adds the loss to the graph. Its gradient comes from the operators' own rules.
    fn loss(&self, operands: LossOperands) -> Result<(), GraphError>;
}
