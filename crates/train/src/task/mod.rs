//! Tasks: each is one value that says what it takes from the data, what its head and loss are, which numbers it reports,
//! and how its head is exported. One file each, and one line in [`TASKS`].

mod classification;
mod language;
mod padding;
mod preference;
mod ranking;
mod reward;
mod seq2seq;

use std::fmt::Debug;
use std::sync::Arc;

use plimsoll_data::{Classes, Content, MicroBatch, UpdateHead};
use plimsoll_models::Head;
use serde_json::Value as Json;

pub use classification::Classification;
pub use language::Language;
pub(crate) use padding::name_padding;
pub use preference::Preference;
pub use ranking::{Ranking, RankingLoss, RankingSettings};
pub use reward::Reward;
pub use seq2seq::Seq2Seq;

use crate::{Metrics, TextFiles};

/// What there is of a micro-batch or of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amounts {
    /// Of the stream that bears the loss.
    pub tokens: u64,
    /// Of the stream that it is conditioned on, if there is one.
    pub source_tokens: u64,
    /// Tokens that bear loss.
    pub loss_tokens: u64,
    pub sequences: u64,
}

impl Amounts {
    /// Tokens that a model reads, of all streams.
    pub fn all_tokens(&self) -> u64 {
        self.tokens + self.source_tokens
    }
}

impl From<&MicroBatch> for Amounts {
    fn from(batch: &MicroBatch) -> Self {
        let count = |n: usize| n as u64;
        Self {
            tokens: count(batch.len()),
            source_tokens: count(batch.streams.iter().skip(1).map(|stream| stream.len()).sum()),
            loss_tokens: count(batch.loss_tokens()),
            sequences: count(batch.sequences()),
        }
    }
}

impl From<&UpdateHead> for Amounts {
    fn from(head: &UpdateHead) -> Self {
        Self { tokens: head.tokens, source_tokens: 0, loss_tokens: head.loss_tokens, sequences: head.sequences }
    }
}

impl std::ops::AddAssign for Amounts {
    fn add_assign(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.source_tokens += other.source_tokens;
        self.loss_tokens += other.loss_tokens;
        self.sequences += other.sequences;
    }
}

/// A part of the loss: a mean, and its weight in the sum of all parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossPart {
    pub weight: f64,
    pub mean_of: u64,
}

impl LossPart {
    /// What each addend is multiplied by.
    pub fn scale(&self) -> f64 {
        self.weight / self.mean_of.max(1) as f64
    }
}

/// What a model is trained to do.
pub trait Task: Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// What rows become.
    fn content(&self) -> Content;

    fn head(&self) -> Arc<dyn Head>;

    /// What the loss of an update is a mean of.
    fn loss_terms(&self, amounts: &Amounts) -> u64;

    /// The parts that the head makes the loss of, each a mean of its own.
    fn loss_parts(&self, amounts: &Amounts) -> Vec<LossPart> {
        vec![LossPart { weight: 1.0, mean_of: self.loss_terms(amounts) }]
    }

    /// Tokens that count as evaluated.
    fn evaluated_tokens(&self, amounts: &Amounts) -> u64 {
        amounts.tokens
    }

    /// Named numbers from what the head counted.
    fn metrics(&self, _stats: &[f64]) -> Metrics {
        Metrics::default()
    }

    /// Whether evaluation reports bits per byte of the texts.
    fn reports_bits_per_byte(&self) -> bool {
        false
    }

    /// Whether evaluation has the model answer sources and compares its texts with the targets.
    fn compares_texts(&self) -> bool {
        false
    }

    /// What Hugging Face calls such a model, behind the family's name.
    fn hf_class(&self) -> &'static str;

    /// PEFT's `task_type`.
    fn peft_task_type(&self) -> &'static str;

    /// Adds what the exported `config.json` must say about the head, and what the tokenizer's files beside it must.
    fn complete_config(&self, _config: &mut Json, _tokenizer: &mut TextFiles) {}

    /// Sequences that only mean something together.
    fn group(&self) -> usize {
        self.content().group()
    }
}

/// What a run says about its task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskSettings {
    pub classes: Classes,
    pub reward: Reward,
    pub ranking: RankingSettings,
    pub dpo_beta: f64,
    /// The share of pairs that are the wrong way round.
    pub dpo_label_smoothing: f64,
    pub orpo_lambda: f64,
    /// The token that the model's targets begin with, if it has an encoder.
    pub decoder_start: Option<u32>,
}

impl Default for TaskSettings {
    fn default() -> Self {
        Self {
            classes: Classes::default(),
            reward: Reward::default(),
            ranking: RankingSettings::default(),
            dpo_beta: 0.1,
            dpo_label_smoothing: 0.0,
            orpo_lambda: 0.1,
            decoder_start: None,
        }
    }
}

/// What a task lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskLacks {
    /// How many classes there are.
    Classes,
    /// A model with an encoder, whose configuration names the token that targets begin with.
    DecoderStart,
}

type Make = fn(&TaskSettings) -> Result<Arc<dyn Task>, TaskLacks>;

/// Every task by its name in a run file.
pub const TASKS: &[(&str, Make)] = &[
    ("pretrain", |_| Ok(Arc::new(Language::pretrain()))),
    ("sft", |_| Ok(Arc::new(Language::sft()))),
    ("reward", |settings| Ok(Arc::new(settings.reward))),
    ("ranking", |settings| Ok(Arc::new(Ranking(settings.ranking)))),
    ("dpo", |settings| Ok(Arc::new(Preference::dpo(settings.dpo_beta, settings.dpo_label_smoothing)))),
    ("orpo", |settings| Ok(Arc::new(Preference::orpo(settings.orpo_lambda)))),
    ("seq2seq", |settings| Ok(Arc::new(Seq2Seq::new(settings.decoder_start.ok_or(TaskLacks::DecoderStart)?)))),
    ("classification", |settings| Ok(Arc::new(Classification::new(&settings.classes)?))),
];

/// The task of that name; `None` if there is none.
pub fn task_named(name: &str, settings: &TaskSettings) -> Option<Result<Arc<dyn Task>, TaskLacks>> {
    TASKS.iter().find(|(known, _)| *known == name).map(|(_, make)| make(settings))
}
