//! Language modelling: the next token, of every text or of answers only.

use std::sync::Arc;

use plimsoll_data::Content;
use plimsoll_graph::ops::VocabLoss;
use plimsoll_graph::{Class, GraphError};
use plimsoll_models::{Head, HeadRows, LossOperands};

use super::{Amounts, Task};

/// `pretrain` and `sft`: they differ in which tokens are learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Language {
    name: &'static str,
    content: Content,
}

impl Language {
    /// Every token is learnt.
    pub fn pretrain() -> Self {
        Self { name: "pretrain", content: Content::Text }
    }

    /// Answers are learnt.
    pub fn sft() -> Self {
        Self { name: "sft", content: Content::Answers }
    }
}

impl Task for Language {
    fn name(&self) -> &'static str {
        self.name
    }

    fn content(&self) -> Content {
        self.content
    }

    fn head(&self) -> Arc<dyn Head> {
        Arc::new(Vocabulary)
    }

    fn loss_terms(&self, amounts: &Amounts) -> u64 {
        amounts.loss_tokens
    }

    fn evaluated_tokens(&self, amounts: &Amounts) -> u64 {
        amounts.loss_tokens
    }

    fn hf_class(&self) -> &'static str {
        "CausalLM"
    }

    fn peft_task_type(&self) -> &'static str {
        "CAUSAL_LM"
    }
}

/// A distribution over the vocabulary at every token; cross entropy.
#[derive(Debug)]
pub(super) struct Vocabulary;

impl Head for Vocabulary {
    fn rows(&self) -> HeadRows {
        HeadRows::Tokens
    }

    fn uses_vocabulary(&self) -> bool {
        true
    }

    fn loss(&self, operands: LossOperands) -> Result<(), GraphError> {
        let LossOperands { graph, hidden, vocabulary, targets, scale, loss, softcap, chunks, .. } = operands;
        let vocabulary = vocabulary.expect("asked for");
        let op = VocabLoss::new(softcap, chunks);
        graph.apply(op, &[hidden, vocabulary, targets, scale, loss], "loss", Class::NONE).map(|_| ())
    }
}
