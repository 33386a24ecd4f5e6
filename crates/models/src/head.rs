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
    /// Of the main stream.
    pub boundaries: ValueId,
    /// One over what the loss of the whole update is a mean of.
    pub scale: ValueId,
    pub loss: ValueId,
    /// As many numbers as [`Head::stats`] says.
    pub stats: Option<ValueId>,
    pub softcap: Option<f32>,
    /// Into how many chunks logits are divided.
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

    /// Numbers that the loss counts on the way, in double precision.
    fn stats(&self) -> usize {
        0
    }

    /// Adds the loss to the graph. Its gradient comes from the operators' own rules.
    fn loss(&self, operands: LossOperands) -> Result<(), GraphError>;
}
