//! Sequence to sequence: the next token of a target, given its source.

use std::sync::Arc;

use plimsoll_data::Content;
use plimsoll_models::Head;

use super::language::Vocabulary;
use super::{Amounts, Task};

/// For models with an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seq2Seq {
    /// The token that targets begin with.
    decoder_start: u32,
}

impl Seq2Seq {
    pub fn new(decoder_start: u32) -> Self {
        Self { decoder_start }
    }
}

impl Task for Seq2Seq {
    fn name(&self) -> &'static str {
        "seq2seq"
    }

    fn content(&self) -> Content {
        Content::SourceTarget { decoder_start: self.decoder_start }
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

    fn compares_texts(&self) -> bool {
        true
    }

    fn hf_class(&self) -> &'static str {
        "ConditionalGeneration"
    }

    fn peft_task_type(&self) -> &'static str {
        "SEQ_2_SEQ_LM"
    }
}
