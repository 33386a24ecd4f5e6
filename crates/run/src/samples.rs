//! Held-out prompts answered by the trained model.

use plimsoll_data::{Example, ExampleRef, NO_LOSS, Tokenizer};
use plimsoll_train::Session;

use crate::data::RunData;
use crate::failure::Failure;

/// A held-out prompt, the model's answer, and the expected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    pub prompt: String,
    pub answer: String,
    pub expected: String,
}

/// Tokens the model may take for one answer.
const ANSWER_TOKENS_MAX: usize = 64;

/// Answers to the first `count` held-out prompts, each the most likely token by token.
pub fn samples(session: &mut Session, data: &RunData, count: usize) -> Result<Vec<Sample>, Failure> {
    let Some(eval) = &data.eval else { return Ok(Vec::new()) };
    let chosen = eval.first(count)?;
    let chosen: Vec<ExampleRef> = chosen.iter().map(Example::view).collect();
    let prompts: Vec<Vec<u32>> = chosen.iter().map(prompt).collect();
    // An answer ends where the examples' answers end.
    let stop = chosen.first().and_then(|example| expected(example).last().copied());
    let answers = session.sample(&prompts, stop, ANSWER_TOKENS_MAX)?;
    let text = |tokenizer: &Tokenizer, ids: &[u32]| tokenizer.decode(ids, true).map(|text| text.trim().to_owned());
    let mut samples = Vec::new();
    for ((example, prompt), answer) in chosen.iter().zip(&prompts).zip(&answers) {
        samples.push(Sample {
            prompt: text(&data.tokenizer, prompt)?,
            answer: text(&data.tokenizer, answer)?,
            expected: text(&data.tokenizer, &expected(example))?,
        });
    }
    Ok(samples)
}

/// Samples whose answer is the expected one to the letter.
pub fn count_exact(samples: &[Sample]) -> usize {
    samples.iter().filter(|sample| sample.answer == sample.expected).count()
}

/// Everything up to the first token with loss, or what the model's encoder reads.
fn prompt(example: &ExampleRef) -> Vec<u32> {
    if !example.source.is_empty() {
        return example.source.to_vec();
    }
    let first = example.targets.iter().position(|&t| t != NO_LOSS).unwrap_or(example.len().saturating_sub(1));
    example.tokens[..=first].to_vec()
}

fn expected(example: &ExampleRef) -> Vec<u32> {
    example.targets.iter().filter(|&&t| t != NO_LOSS).map(|&t| t.cast_unsigned()).collect()
}
