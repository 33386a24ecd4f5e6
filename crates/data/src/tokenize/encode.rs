//! One row to tokens: its sample through the right template, from any thread.

use serde_json::Value;

use super::mask::{self, Masked};
use super::pairs;
use crate::content::Content;
use crate::dataset::Options;
use crate::error::{DataError, Place};
use crate::format::{Classes, RowFormat, Sample, as_conversation};
use crate::read::Row;
use crate::template::ChatTemplate;
use crate::tokenize::Tokenizer;

/// Where the tokenizer has no template and the rows are conversations.
const FALLBACK: &str = "chatml";

/// The tokens of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EncodedRow {
    One(Masked),
    /// The preferred side first.
    Pair([Masked; 2]),
    /// A sequence and its class.
    Labelled(Vec<u32>, i32),
    /// What is conditioned on, and what is learnt; both with their end.
    SourceTarget {
        source: Vec<u32>,
        target: Vec<u32>,
    },
}

/// Turns one row into tokens; shared by the worker threads.
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    format: RowFormat,
    content: Content,
    classes: Classes,
    fallback: Option<ChatTemplate>,
    eos: Option<u32>,
}

/// A run of tokens as text, all to be learnt or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub text: String,
    pub learn: bool,
}

impl<'a> Encoder<'a> {
    pub fn new(tokenizer: &'a Tokenizer, format: RowFormat, options: &Options) -> Result<Self, DataError> {
        let fallback = match (format, tokenizer.chat_template()) {
            (RowFormat::Messages | RowFormat::Conversations | RowFormat::PromptMessages | RowFormat::Pairs, None) => {
                Some(tokenizer.built_in_template(FALLBACK).map_err(|_| no_eos(tokenizer))?)
            }
            _ => None,
        };
        // Only a template of its own ends an answer without the tokenizer naming an end.
        let eos = match (format, options.content) {
            (RowFormat::Text | RowFormat::Prompt, _) | (_, Content::SourceTarget { .. }) => {
                Some(mask::require_eos(tokenizer)?)
            }
            _ => tokenizer.eos_id(),
        };
        Ok(Self { tokenizer, format, content: options.content, classes: options.classes.clone(), fallback, eos })
    }

    pub fn encode(&self, row: &Row) -> Result<EncodedRow, DataError> {
        match self.content {
            Content::Labelled => {
                let label = self.classes.read(row)?;
                let masked = self.encode_one(row, self.format.read_any(row)?)?;
                Ok(EncodedRow::Labelled(masked.tokens, label))
            }
            Content::SourceTarget { .. } => {
                let Sample::PromptResponse { prompt, response } = self.format.read(row)? else {
                    // A source is one text; what comes before its question has no place in it.
                    let (column, reason) = ("system, history or turns", "this task has one source and one target");
                    return Err(DataError::NotRendered { at: row.at.clone(), column, reason });
                };
                Ok(EncodedRow::SourceTarget {
                    source: self.encode_text(&row.at, &prompt)?.tokens,
                    target: self.encode_text(&row.at, &response)?.tokens,
                })
            }
            Content::Text | Content::Answers | Content::Pairs => match self.format.read(row)? {
                Sample::Pair(preference) => {
                    let fallback = self.fallback.as_ref();
                    pairs::encode(&preference, self.tokenizer, fallback, &row.at).map(EncodedRow::Pair)
                }
                sample => self.encode_one(row, sample).map(EncodedRow::One),
            },
        }
    }

    /// A row that is one sequence.
    fn encode_one(&self, row: &Row, sample: Sample) -> Result<Masked, DataError> {
        let (tokenizer, at) = (self.tokenizer, &row.at);
        match (sample, self.template()) {
            (Sample::Text(text), _) => self.encode_text(at, &text),
            (Sample::PromptResponse { prompt, response }, None) => mask::plain_pair(tokenizer, at, &prompt, &response),
            (Sample::PromptResponse { prompt, response }, Some(template)) => {
                let messages = as_conversation(&prompt, &response);
                mask::conversation(tokenizer, template, at, &messages, &Value::Null)
            }
            (Sample::Messages { messages, tools, .. }, Some(template)) => {
                mask::conversation(tokenizer, template, at, &messages, &tools)
            }
            (Sample::Messages { .. }, None) => Err(DataError::NeedsTemplate { at: at.clone() }),
            (Sample::Pair(_), _) => Err(DataError::OnlyPairs { at: at.clone() }),
        }
    }

    /// What conversations go through: the tokenizer's template, or one of ours where it has none and the rows need one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.tokenizer.chat_template().or(self.fallback.as_ref())
    }

    /// The row as it will be trained, for people to look at: what bears loss and what does not. One list of pieces, two for
    /// a pair or for a source and its target.
    pub fn preview(&self, row: &Row) -> Result<Vec<Vec<Piece>>, DataError> {
        match self.encode(row)? {
            EncodedRow::One(one) => Ok(vec![self.pieces(&one)?]),
            EncodedRow::Pair([a, b]) => Ok(vec![self.pieces(&a)?, self.pieces(&b)?]),
            EncodedRow::Labelled(tokens, _) => Ok(vec![self.pieces(&Masked::all(tokens, false))?]),
            EncodedRow::SourceTarget { source, target } => {
                Ok(vec![self.pieces(&Masked::all(source, false))?, self.pieces(&Masked::all(target, true))?])
            }
        }
    }

    fn pieces(&self, masked: &Masked) -> Result<Vec<Piece>, DataError> {
        let mut pieces = Vec::new();
        let mut start = 0;
        for run in masked.learn.chunk_by(|a, b| a == b) {
            let tokens = &masked.tokens[start..start + run.len()];
            pieces.push(Piece { text: self.tokenizer.decode(tokens, false)?, learn: run[0] });
            start += run.len();
        }
        Ok(pieces)
    }

    /// A text with what the tokenizer puts before it and one end behind it, all to be learnt.
    fn encode_text(&self, at: &Place, text: &str) -> Result<Masked, DataError> {
        let tokenise = |error: DataError| DataError::Tokenise { at: at.clone(), reason: error.to_string() };
        let mut tokens = self.tokenizer.encode(text, true).map_err(tokenise)?;
        if let Some(eos) = self.eos
            && tokens.last() != Some(&eos)
        {
            tokens.push(eos);
        }
        let mut masked = Masked::all(tokens, true);
        mask::one_beginning(self.tokenizer, &mut masked);
        Ok(masked)
    }
}

fn no_eos(tokenizer: &Tokenizer) -> DataError {
    DataError::NoEos { origin: tokenizer.origin().to_owned() }
}
