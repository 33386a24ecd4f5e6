//! Two answers to one question, the preferred one first: read from a row, rendered, cut from the question's side.

use serde_json::Value;

use crate::chat::ChatTemplate;
use crate::error::{DataError, Place};
use crate::mask::{self, Masked};
use crate::read::Row;
use crate::shape::{missing, present, read_message_list, string, wrong_type};
use crate::tokenizer::Tokenizer;

/// Columns of the two answers.
const ANSWERS: [(&str, &str); 2] = [("chosen", "rejected"), ("chosen_response", "rejected_response")];
/// Columns of what both answer.
const QUESTIONS: [&str; 3] = ["prompt", "question", "instruction"];

pub(crate) const ACCEPTS: &str = "`prompt` with `chosen` and `rejected` (or `chosen_response` and `rejected_response`), \
    `chosen` and `rejected` as lists of {role, content}";

/// Two sides of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub enum Preference {
    /// Answers to one prompt. Without a prompt, each is a whole text.
    Texts { prompt: Option<String>, chosen: String, rejected: String },
    /// Two whole conversations.
    Conversations { chosen: Vec<Value>, rejected: Vec<Value> },
}

impl Preference {
    /// All that is said in it.
    pub(crate) fn into_texts(self) -> Vec<String> {
        let contents = |messages: Vec<Value>| -> Vec<String> {
            messages.iter().filter_map(|message| Some(message["content"].as_str()?.to_owned())).collect()
        };
        match self {
            Self::Texts { prompt, chosen, rejected } => prompt.into_iter().chain([chosen, rejected]).collect(),
            Self::Conversations { chosen, rejected } => [contents(chosen), contents(rejected)].concat(),
        }
    }
}

fn answers_of(row: &Row) -> Option<(&'static str, &'static str)> {
    let both = |(a, b): &(&str, &str)| present(row, a).is_some() && present(row, b).is_some();
    ANSWERS.into_iter().find(both)
}

pub(crate) fn detects(row: &Row) -> bool {
    answers_of(row).is_some()
}

pub(crate) fn columns_of(row: &Row) -> Vec<&'static str> {
    let question = QUESTIONS.into_iter().find(|name| present(row, name).is_some());
    let answers = answers_of(row).map_or(Vec::new(), |(chosen, rejected)| vec![chosen, rejected]);
    question.into_iter().chain(answers).collect()
}

pub(crate) fn read(row: &Row) -> Result<Preference, DataError> {
    let Some((chosen, rejected)) = answers_of(row) else { return Err(missing(row, "format `pairs`", ACCEPTS)) };
    let question = QUESTIONS.into_iter().find_map(|name| Some((name, present(row, name)?)));
    let (ours, theirs) = (&row.columns[chosen], &row.columns[rejected]);
    if ours.is_array() || theirs.is_array() {
        let before = match question {
            Some((_, Value::String(text))) => vec![serde_json::json!({"role": "user", "content": text})],
            Some((name, list)) => read_message_list(row, name, list)?,
            None => Vec::new(),
        };
        let whole = |name: &str, list: &Value| -> Result<Vec<Value>, DataError> {
            let answer = read_message_list(row, name, list)?;
            // Some tables give the prompt apart and, once more, at the head of each conversation.
            if answer.starts_with(&before) { Ok(answer) } else { Ok([&before[..], &answer].concat()) }
        };
        return Ok(Preference::Conversations { chosen: whole(chosen, ours)?, rejected: whole(rejected, theirs)? });
    }
    let prompt = match question {
        Some((name, Value::Array(_))) => return Err(wrong_type(row, name, &row.columns[name], "a string")),
        Some((name, text)) => Some(string(row, name, text)?),
        None => None,
    };
    Ok(Preference::Texts { prompt, chosen: string(row, chosen, ours)?, rejected: string(row, rejected, theirs)? })
}

/// Both sides as tokens, with what belongs to an answer marked.
pub(crate) fn encode(
    preference: &Preference,
    tokenizer: &Tokenizer,
    fallback: Option<&ChatTemplate>,
    at: &Place,
) -> Result<[Masked; 2], DataError> {
    match (preference, tokenizer.chat_template()) {
        (Preference::Conversations { chosen, rejected }, own) => {
            let template = own.or(fallback);
            let template = template.ok_or_else(|| DataError::NoEos { origin: tokenizer.origin().to_owned() })?;
            let side = |messages: &[Value]| mask::conversation(tokenizer, template, at, messages, &Value::Null);
            Ok([side(chosen)?, side(rejected)?])
        }
        (Preference::Texts { prompt: Some(prompt), chosen, rejected }, Some(template)) => {
            let side = |answer: &str| {
                let messages = crate::shape::as_conversation(prompt, answer);
                mask::conversation(tokenizer, template, at, &messages, &Value::Null)
            };
            Ok([side(chosen)?, side(rejected)?])
        }
        (Preference::Texts { prompt: Some(prompt), chosen, rejected }, None) => {
            let side = |answer: &str| mask::plain_pair(tokenizer, at, prompt, answer);
            Ok([side(chosen)?, side(rejected)?])
        }
        // Whole dialogues as text: what they begin with together is the prompt.
        (Preference::Texts { prompt: None, chosen, rejected }, _) => {
            let common = chosen.chars().zip(rejected.chars()).take_while(|(a, b)| a == b);
            let prompt: usize = common.map(|(c, _)| c.len_utf8()).sum();
            let side = |text: &str| mask::plain_pair(tokenizer, at, &text[..prompt], &text[prompt..]);
            Ok([side(chosen)?, side(rejected)?])
        }
    }
}

/// What became of a pair that had to be made to fit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Fits,
    Shortened,
    /// The answers alone are too long.
    TooLong,
}

/// Takes tokens off the prompt until both sides fit. Both lose the same ones, so that the answers stay all that differs;
/// a beginning-of-sequence token stays.
pub(crate) fn cut(pair: &mut [Masked; 2], max_length: usize, bos: Option<u32>) -> Cut {
    let longest = pair[0].tokens.len().max(pair[1].tokens.len());
    let Some(excess) = longest.checked_sub(max_length).filter(|e| *e > 0) else { return Cut::Fits };
    let kept = usize::from(bos.is_some() && pair[0].tokens.first().copied() == bos);
    if kept + excess > answers_start(pair) {
        return Cut::TooLong;
    }
    for side in pair {
        side.tokens.drain(kept..kept + excess);
        side.learn.drain(kept..kept + excess);
    }
    Cut::Shortened
}

/// Up to where both sides are the prompt: the first difference or, if that lies in an answer, the answer's beginning.
fn answers_start(pair: &[Masked; 2]) -> usize {
    let [a, b] = pair;
    let same = a.tokens.iter().zip(&b.tokens).take_while(|(x, y)| x == y).count();
    pair.iter().map(|side| answer_start(side, same)).min().unwrap_or(same)
}

fn answer_start(side: &Masked, difference: usize) -> usize {
    let in_answer = |position: usize| side.learn.get(position).copied().unwrap_or(false);
    // One side may end where the other goes on.
    let mut start = difference;
    while start > 0 && in_answer(start - 1) && (in_answer(start) || start == side.learn.len()) {
        start -= 1;
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prompt and answer as text; letters are tokens.
    fn side(prompt: &str, answer: &str) -> Masked {
        let tokens = prompt.bytes().chain(answer.bytes()).map(u32::from).collect();
        let learn = prompt.bytes().map(|_| false).chain(answer.bytes().map(|_| true)).collect();
        Masked { tokens, learn }
    }

    fn text(side: &Masked) -> String {
        side.tokens.iter().map(|&t| char::from(t as u8)).collect()
    }

    #[track_caller]
    fn check(sides: [(&str, &str); 2], max_length: usize, expected: Cut, left: [&str; 2]) {
        let mut pair = sides.map(|(prompt, answer)| side(prompt, answer));
        assert_eq!(cut(&mut pair, max_length, Some(u32::from(b'^'))), expected);
        assert_eq!([text(&pair[0]), text(&pair[1])], left);
    }

    #[test]
    fn the_prompt_is_cut_and_never_an_answer() {
        check([("abcd", "xy"), ("abcd", "z")], 6, Cut::Fits, ["abcdxy", "abcdz"]);
        check([("abcd", "xy"), ("abcd", "z")], 4, Cut::Shortened, ["cdxy", "cdz"]);
        check([("abcd", "xy"), ("abcd", "z")], 2, Cut::Shortened, ["xy", "z"]);
        check([("abcd", "xy"), ("abcd", "z")], 1, Cut::TooLong, ["abcdxy", "abcdz"]);
        // Answers that begin alike are not the prompt.
        check([("ab", "xxy"), ("ab", "xxz")], 3, Cut::Shortened, ["xxy", "xxz"]);
        check([("ab", "xxy"), ("ab", "xxz")], 2, Cut::TooLong, ["abxxy", "abxxz"]);
        // Nor where one is the other's beginning.
        check([("ab", "xx"), ("ab", "xxyy")], 4, Cut::Shortened, ["xx", "xxyy"]);
        check([("ab", "xx"), ("ab", "xxyy")], 3, Cut::TooLong, ["abxx", "abxxyy"]);
        // Prompts that differ may be cut up to where they do.
        check([("abc", "x"), ("abd", "x")], 2, Cut::Shortened, ["cx", "dx"]);
        check([("abc", "x"), ("abd", "x")], 1, Cut::TooLong, ["abcx", "abdx"]);
    }

    #[test]
    fn the_beginning_of_sequence_stays() {
        check([("^abc", "x"), ("^abc", "yz")], 4, Cut::Shortened, ["^cx", "^cyz"]);
        check([("^abc", "x"), ("^abc", "yz")], 3, Cut::Shortened, ["^x", "^yz"]);
        check([("^abc", "x"), ("^abc", "yz")], 2, Cut::TooLong, ["^abcx", "^abcyz"]);
    }
}
