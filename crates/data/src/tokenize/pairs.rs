//! Two answers to one question as tokens; what is too long is cut from the question's side.

use serde_json::Value;

use super::mask::{self, Masked};
use super::tokenizer::Tokenizer;
use crate::error::{DataError, Place};
use crate::format::{Preference, as_conversation};
use crate::template::ChatTemplate;

/// Both sides as tokens, with what belongs to an answer marked.
pub(crate) fn encode(
    preference: &Preference,
    tokenizer: &Tokenizer,
    fallback: Option<&ChatTemplate>,
    at: &Place,
) -> Result<[Masked; 2], DataError> {
    match (preference, tokenizer.chat_template()) {
        (Preference::Conversations { chosen, rejected, tools }, own) => {
            let template = own.or(fallback);
            let template = template.ok_or_else(|| DataError::NoEos { origin: tokenizer.origin().to_owned() })?;
            let side = |messages: &[Value]| mask::conversation(tokenizer, template, at, messages, tools);
            Ok([side(chosen)?, side(rejected)?])
        }
        (Preference::Texts { prompt: Some(prompt), chosen, rejected }, Some(template)) => {
            let side = |answer: &str| {
                let messages = as_conversation(prompt, answer);
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
        // Marks stand in answers, which are behind what is taken off.
        side.marks.iter_mut().for_each(|(position, _)| *position -= excess);
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
        Masked { tokens, learn, ..Masked::default() }
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
