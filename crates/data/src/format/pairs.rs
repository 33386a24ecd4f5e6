//! Two answers to one question, the preferred one first, as rows hold them.

use serde_json::{Value, json};

use super::conversation::{read_message_list, read_preamble};
use super::row_format::{as_conversation, missing, present, question_text, string, wrong_type};
use crate::error::DataError;
use crate::read::Row;

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
            Some((name, Value::String(_))) => {
                [read_preamble(row)?, vec![json!({"role": "user", "content": question_text(row, name)?})]].concat()
            }
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
        Some((name, _)) => Some(question_text(row, name)?),
        None => None,
    };
    let preamble = read_preamble(row)?;
    if let (Some(prompt), false) = (&prompt, preamble.is_empty()) {
        let side = |name: &str, answer: &Value| -> Result<Vec<Value>, DataError> {
            Ok([preamble.clone(), as_conversation(prompt, &string(row, name, answer)?)].concat())
        };
        return Ok(Preference::Conversations { chosen: side(chosen, ours)?, rejected: side(rejected, theirs)? });
    }
    Ok(Preference::Texts { prompt, chosen: string(row, chosen, ours)?, rejected: string(row, rejected, theirs)? })
}
