//! The first example of a run, as the model is trained on it.

use plimsoll_data::NO_LOSS;

use super::RunData;
use crate::failure::Failure;

/// A stretch of text, all of it with loss or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub text: String,
    pub has_loss: bool,
}

/// Texts, each with a line above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExampleText(pub Vec<(String, Vec<Piece>)>);

impl RunData {
    /// One text, or the two of a pair.
    pub fn first_example(&self) -> Result<ExampleText, Failure> {
        let group = self.train.group();
        let examples = self.train.first(group)?;
        let mut texts = Vec::new();
        for (side, example) in examples.iter().enumerate() {
            // A position's target is the token behind it.
            let has_loss = |position: usize| position > 0 && example.targets[position - 1] != NO_LOSS;
            let marks: Vec<bool> = (0..example.tokens.len()).map(has_loss).collect();
            let count = marks.iter().filter(|&&has_loss| has_loss).count();
            let lead = match (group, side) {
                (1, _) => format!("first example: {} tokens, {count} with loss", marks.len()),
                (_, 0) => format!("first pair, chosen: {} tokens", marks.len()),
                _ => format!("first pair, rejected: {} tokens", marks.len()),
            };
            let mut pieces = Vec::new();
            let mut start = 0;
            for run in marks.chunk_by(|a, b| a == b) {
                let tokens = &example.tokens[start..start + run.len()];
                pieces.push(Piece { text: self.tokenizer.decode(tokens, false)?, has_loss: run[0] });
                start += run.len();
            }
            texts.push((lead, pieces));
        }
        Ok(ExampleText(texts))
    }
}
