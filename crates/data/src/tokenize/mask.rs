//! Which tokens of a row bear loss.
//!
//! The row is rendered to text once, the answers are byte spans of that text, and the text is tokenised as a whole: the
//! tokens are exactly those the model will see, and the offsets say which of them belong to an answer.

use std::ops::Range;

use serde_json::Value;

use crate::error::{DataError, Place};
use crate::format::{CALLS, Candidates, is_learnt};
use crate::template::{ChatTemplate, Rendered, strip};
use crate::tokenize::{Encoded, Tokenizer};
use crate::visible::visible;

/// Tokens with, for each, whether the model is to learn to produce it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Masked {
    pub tokens: Vec<u32>,
    pub learn: Vec<bool>,
    /// Positions that have a number of their own, in order.
    pub marks: Vec<(usize, f32)>,
}

impl Masked {
    /// All tokens to be learnt, or none.
    pub(crate) fn all(tokens: Vec<u32>, learn: bool) -> Self {
        let learn = vec![learn; tokens.len()];
        Self { tokens, learn, marks: Vec::new() }
    }

    /// Keeps the beginning.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.learn.truncate(length);
        self.marks.retain(|(position, _)| *position < length);
    }
}

/// A prompt and its response, one behind the other, and the end of sequence.
pub(crate) fn plain_pair(tokenizer: &Tokenizer, at: &Place, prompt: &str, response: &str) -> Result<Masked, DataError> {
    let eos = require_eos(tokenizer)?;
    let text = format!("{prompt}{response}");
    let answer = prompt.len()..text.len();
    let mut masked = encode(tokenizer, at, &text, true, std::slice::from_ref(&answer))?;
    // Some tokenizers end every text themselves; either way there is one end, and it is learnt.
    if masked.tokens.last() == Some(&eos) {
        masked.tokens.pop();
        masked.learn.pop();
    }
    masked.tokens.push(eos);
    masked.learn.push(true);
    one_beginning(tokenizer, &mut masked);
    Ok(masked)
}

/// A text that begins with the beginning of sequence in so many letters has two of them once the tokenizer adds its own.
pub(crate) fn one_beginning(tokenizer: &Tokenizer, masked: &mut Masked) {
    if let (Some(bos), [first, second, ..]) = (tokenizer.bos_id(), &masked.tokens[..])
        && (*first, *second) == (bos, bos)
    {
        masked.tokens.remove(0);
        masked.learn.remove(0);
    }
}

/// A conversation through a chat template; the assistant's turns are learnt, each with its end-of-turn marker.
pub(crate) fn conversation(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    at: &Place,
    messages: &[Value],
    tools: &Value,
) -> Result<Masked, DataError> {
    let (text, answers) = answer_spans(template, at, messages, tools)?;
    // The template writes the beginning-of-sequence token itself.
    encode(tokenizer, at, &text, false, &answers)
}

/// As [`conversation`], with the last token of every candidate marked.
pub(crate) fn ranked(
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    at: &Place,
    messages: &[Value],
    tools: &Value,
    candidates: &Candidates,
) -> Result<Masked, DataError> {
    let (text, answers) = answer_spans(template, at, messages, tools)?;
    let ends = candidates.ends(&text, &answers);
    let ends = ends.map_err(|reason| DataError::BadCandidates { at: at.clone(), reason })?;
    let (mut masked, offsets) = encode_with_offsets(tokenizer, at, &text, false, &answers)?;
    for (end, relevance) in ends {
        let last_byte = end - 1..end;
        let last = offsets.iter().rposition(|&token| belongs(token, &last_byte));
        masked.marks.extend(last.map(|position| (position, relevance)));
    }
    Ok(masked)
}

pub(crate) fn require_eos(tokenizer: &Tokenizer) -> Result<u32, DataError> {
    tokenizer.eos_id().ok_or_else(|| DataError::NoEos { origin: tokenizer.origin().to_owned() })
}

/// The rendered conversation and, in it, the bytes the assistant has to produce.
fn answer_spans(
    template: &ChatTemplate,
    at: &Place,
    messages: &[Value],
    tools: &Value,
) -> Result<(String, Vec<Range<usize>>), DataError> {
    let refused = |reason: String| DataError::Render { at: at.clone(), reason: visible(&reason).into_owned() };
    let render = |count: usize, prompt: bool| {
        let text = template.render(&messages[..count], tools, prompt);
        text.map_err(refused)
    };
    let whole = template.render_marked(messages, tools, false);
    let Rendered { text: full, answers } = whole.map_err(refused)?;
    check_calls(template, at, messages, tools, &full)?;
    if let Some(answers) = answers {
        return Ok((full, of_learnt_turns(answers, at, messages)?));
    }
    let mut spans: Vec<Range<usize>> = Vec::new();
    for turn in (0..messages.len()).filter(|&i| is_learnt(&messages[i])) {
        let not_incremental = || DataError::NotIncremental { at: at.clone(), turn: turn + 1 };
        let prompted = render(turn, true)?;
        let start = if full.starts_with(&prompted) {
            prompted.len()
        } else {
            let content = messages[turn]["content"].as_str().unwrap_or_default();
            let start = start_behind_header(&full, &render(turn, false)?, &prompted, content);
            start.ok_or_else(not_incremental)?
        };
        let after = render(turn + 1, false)?;
        let within = full.starts_with(&after).then_some(after.len());
        let end = end_of_answer(&full, start, within, template.end_of_turn());
        let end = end.ok_or_else(not_incremental)?;
        // Two turns of the assistant in a row: the second one's header may not be told from the first one's text.
        if end < start || spans.last().is_some_and(|last| last.end > start) {
            return Err(not_incremental());
        }
        spans.push(start..end);
    }
    Ok((full, spans))
}

/// Turns that call tools must be written by the template, or the model would learn to say nothing instead.
fn check_calls(
    template: &ChatTemplate,
    at: &Place,
    messages: &[Value],
    tools: &Value,
    full: &str,
) -> Result<(), DataError> {
    for column in CALLS {
        if !messages.iter().any(|message| message.get(column).is_some()) {
            continue;
        }
        let without = |message: &Value| {
            let mut message = message.clone();
            message.as_object_mut().map(|message| message.remove(column));
            message
        };
        let without: Vec<Value> = messages.iter().map(without).collect();
        if template.render(&without, tools, false).is_ok_and(|text| text == full) {
            let reason = "the chat template does not write it";
            return Err(DataError::NotRendered { at: at.clone(), column, reason });
        }
    }
    Ok(())
}

/// Of the stretches that a template marks, those of turns that are to be learnt.
fn of_learnt_turns(marked: Vec<Range<usize>>, at: &Place, messages: &[Value]) -> Result<Vec<Range<usize>>, DataError> {
    let learnt: Vec<bool> = messages.iter().filter(|message| message["role"] == "assistant").map(is_learnt).collect();
    if learnt.iter().all(|learnt| *learnt) {
        return Ok(marked);
    }
    if marked.len() != learnt.len() {
        let reason = "the chat template does not mark one stretch for each answer, so which to leave out is unknown";
        return Err(DataError::NotRendered { at: at.clone(), column: "weight", reason });
    }
    Ok(marked.into_iter().zip(learnt).filter_map(|(answer, learnt)| learnt.then_some(answer)).collect())
}

/// Where an answer begins if the full text does not hold the generation prompt: that of reasoning models opens a thought,
/// and answers without one do not. The header is what the two have in common, as far as the answer's own text.
fn start_behind_header(full: &str, before: &str, prompted: &str, content: &str) -> Option<usize> {
    let (turn, prompt) = (full.strip_prefix(before)?, prompted.strip_prefix(before)?);
    let content = strip(content);
    let head = &turn[..turn.find(content).filter(|_| !content.is_empty())?];
    let common = head.chars().zip(prompt.chars()).take_while(|(a, b)| a == b);
    let header: usize = common.map(|(a, _)| a.len_utf8()).sum();
    (header > 0).then_some(before.len() + header)
}

/// `within`: where the rendering up to and including this turn ends, if the full text begins with it. It need not:
/// reasoning models drop the thoughts of all but the last answer. Then the first marker behind the answer's start ends it.
fn end_of_answer(full: &str, start: usize, within: Option<usize>, marker: Option<&str>) -> Option<usize> {
    match (within, marker) {
        (Some(end), None) => Some(end),
        (Some(end), Some(marker)) => {
            let turn = full.get(start..end)?;
            Some(turn.rfind(marker).map_or(end, |i| start + i + marker.len()))
        }
        (None, Some(marker)) => {
            let rest = full.get(start..)?;
            rest.find(marker).map(|i| start + i + marker.len())
        }
        (None, None) => None,
    }
}

fn encode(
    tokenizer: &Tokenizer,
    at: &Place,
    text: &str,
    add_special: bool,
    answers: &[Range<usize>],
) -> Result<Masked, DataError> {
    Ok(encode_with_offsets(tokenizer, at, text, add_special, answers)?.0)
}

/// Also which bytes of the text each token stands for.
fn encode_with_offsets(
    tokenizer: &Tokenizer,
    at: &Place,
    text: &str,
    add_special: bool,
    answers: &[Range<usize>],
) -> Result<(Masked, Vec<(usize, usize)>), DataError> {
    let Encoded { ids, offsets } = tokenizer
        .encode_with_offsets(text, add_special)
        .map_err(|error| DataError::Tokenise { at: at.clone(), reason: error.to_string() })?;
    let learn = offsets.iter().map(|&token| answers.iter().any(|answer| belongs(token, answer))).collect();
    Ok((Masked { tokens: ids, learn, marks: Vec::new() }, offsets))
}

/// A token belongs to an answer when it stands for at least one of its bytes: one that straddles the boundary carries the
/// answer's first letters, and leaving it out would leave them unlearnt. A token of trimmed white space has an empty
/// range at its end; what matters is the byte before. Added special tokens, `(0, 0)`, never belong.
fn belongs((start, end): (usize, usize), answer: &Range<usize>) -> bool {
    if start == end { answer.start < end && end <= answer.end } else { start < answer.end && answer.start < end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_belongs_by_its_bytes() {
        let answer = 4..8;
        for (token, expected) in [
            ((0, 4), false),
            ((3, 5), true),
            ((4, 6), true),
            ((7, 9), true),
            ((8, 9), false),
            ((0, 0), false),
            ((4, 4), false),
            ((5, 5), true),
            ((8, 8), true),
        ] {
            assert_eq!(belongs(token, &answer), expected, "{token:?}");
        }
    }

    #[test]
    fn an_opened_thought_is_no_part_of_the_header() {
        let check = |full, content, expected| {
            let start = start_behind_header(full, "<u>q", "<u>q<a><think>", content);
            assert_eq!(start, expected, "{full}");
        };
        check("<u>q<a>yes</e>", "yes", Some(7));
        check("<u>q<a><b>", " <b>", Some(7));
        // The `<` is common to both thoughts; the token it is part of still belongs to the answer, by its other bytes.
        check("<u>q<a></think>yes", "yes", Some(8));
        check("<u>q<a>", "", None);
        check("<u>q[a]yes", "yes", None);
        check("other", "yes", None);
    }

    #[test]
    fn the_marker_ends_the_answer_and_white_space_behind_it_does_not_count() {
        let full = "<a>yes</e>\n<u>more</e>\n";
        assert_eq!(end_of_answer(full, 3, Some(11), Some("</e>")), Some(10));
        assert_eq!(end_of_answer(full, 3, None, Some("</e>")), Some(10));
        assert_eq!(end_of_answer(full, 3, Some(11), None), Some(11));
        assert_eq!(end_of_answer(full, 3, None, None), None);
    }
}
