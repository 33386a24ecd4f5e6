//! Two answers to one question, the preferred one first, as rows hold them.

use serde_json::{Value, json};

use super::conversation::{read_message_list, read_preamble, read_tools, with_preamble};
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
    /// Two whole conversations, and the tools that may be called in them.
    Conversations { chosen: Vec<Value>, rejected: Vec<Value>, tools: Value },
}

impl Preference {
    /// All that is said in it.
    pub(crate) fn into_texts(self) -> Vec<String> {
        let contents = |messages: Vec<Value>| -> Vec<String> {
            messages.iter().filter_map(|message| Some(message["content"].as_str()?.to_owned())).collect()
        };
        match self {
            Self::Texts { prompt, chosen, rejected } => prompt.into_iter().chain([chosen, rejected]).collect(),
            Self::Conversations { chosen, rejected, .. } => [contents(chosen), contents(rejected)].concat(),
        }
    }
}

/// By how much the preferred answer is better, as the row says.
pub(crate) fn margin(row: &Row) -> Result<f32, DataError> {
    let bad = |found: &str| DataError::BadMargin { at: row.at.clone(), reason: format!("`margin` is {found}") };
    let value = present(row, "margin").ok_or_else(|| bad("missing"))?;
    let number = value.as_f64().filter(|number| number.is_finite() && *number >= 0.0);
    number.map(|number| number as f32).ok_or_else(|| bad(&value.to_string()))
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
    ["system", "history"].into_iter().chain(question).chain(answers).chain(["tools"]).collect()
}

pub(crate) fn read(row: &Row) -> Result<Preference, DataError> {
    let Some((chosen, rejected)) = answers_of(row) else { return Err(missing(row, "format `pairs`", ACCEPTS)) };
    let question = QUESTIONS.into_iter().find_map(|name| Some((name, present(row, name)?)));
    let (ours, theirs) = (&row.columns[chosen], &row.columns[rejected]);
    let tools = read_tools(row);
    if ours.is_array() || theirs.is_array() {
        let before = match question {
            Some((name, Value::String(_))) => vec![json!({"role": "user", "content": question_text(row, name)?})],
            Some((name, list)) => read_message_list(row, name, list)?,
            None => Vec::new(),
        };
        let whole = |name: &str, list: &Value| -> Result<Vec<Value>, DataError> {
            let answer = read_message_list(row, name, list)?;
            // Some tables give the prompt apart and, once more, at the head of each conversation.
            let turns = if answer.starts_with(&before) { answer } else { [&before[..], &answer].concat() };
            with_preamble(row, turns)
        };
        let (chosen, rejected) = (whole(chosen, ours)?, whole(rejected, theirs)?);
        return Ok(Preference::Conversations { chosen, rejected, tools });
    }
    let prompt = match question {
        Some((name, Value::Array(_))) => return Err(wrong_type(row, name, &row.columns[name], "a string")),
        Some((name, _)) => Some(question_text(row, name)?),
        None => None,
    };
    let (chosen, rejected) = (string(row, chosen, ours)?, string(row, rejected, theirs)?);
    match prompt {
        Some(prompt) if !(read_preamble(row)?.is_empty() && tools.is_null()) => {
            let side = |answer: &str| with_preamble(row, as_conversation(&prompt, answer));
            Ok(Preference::Conversations { chosen: side(&chosen)?, rejected: side(&rejected)?, tools })
        }
        prompt => Ok(Preference::Texts { prompt, chosen, rejected }),
    }
}
