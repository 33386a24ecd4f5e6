//! Conversations as tables hold them, made into what a chat template expects: a list of {role, content}.

use serde_json::{Map, Value, json};

use super::row_format::{RowFormat, Sample, as_conversation, missing, present, wrong_type};
use crate::error::DataError;
use crate::read::Row;

/// Columns with a list of turns, in the order they are looked for.
const CONVERSATIONS: [&str; 2] = ["conversations", "conversation"];
/// What a row may say about a conversation beside its text; kept as it is for tasks that learn from it.
const LABELS: [&str; 5] = ["auxiliary_labels", "labels", "label", "scores", "score"];

/// Keys of a turn that calls tools, today's and OpenAI's first one.
pub(crate) const CALLS: [&str; 2] = ["tool_calls", "function_call"];

/// What ShareGPT tables call the speakers.
const SPEAKERS: [(&str, &str); 17] = [
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("assistant", "assistant"),
    ("chatgpt", "assistant"),
    ("bing", "assistant"),
    ("bard", "assistant"),
    ("bot", "assistant"),
    ("model", "assistant"),
    ("function_call", "assistant"),
    ("system", "system"),
    ("tool", "tool"),
    ("function", "tool"),
    ("observation", "tool"),
    ("tool_response", "tool"),
    ("function_response", "tool"),
    ("ipython", "tool"),
];

pub(super) fn conversations_of(row: &Row) -> Option<&'static str> {
    CONVERSATIONS.into_iter().find(|name| present(row, name).is_some())
}

pub(super) fn read_messages(row: &Row, format: RowFormat) -> Result<Sample, DataError> {
    let column = match format {
        RowFormat::Conversations => conversations_of(row),
        _ => Some("messages").filter(|name| present(row, name).is_some()),
    };
    let Some((column, value)) = column.and_then(|name| Some((name, present(row, name)?))) else {
        let wanted = if format == RowFormat::Conversations { "format `conversations`" } else { "format `messages`" };
        return Err(missing(row, wanted, format.accepts()));
    };
    with_columns(row, read_message_list(row, column, value)?)
}

/// Whether the model is to learn to say this: OpenAI's tables give turns that it must not learn the weight 0.
pub(crate) fn is_learnt(message: &Value) -> bool {
    message["role"] == "assistant" && message.get("weight").and_then(Value::as_f64) != Some(0.0)
}

/// A list of turns, or a text that is one of them.
pub(super) fn read_turns(row: &Row, column: &str, value: &Value, role: &str) -> Result<Vec<Value>, DataError> {
    match value {
        Value::String(text) => Ok(vec![json!({"role": role, "content": text})]),
        list => read_message_list(row, column, list),
    }
}

/// What comes before a row's question in columns of their own: the instructions of `system`, and the questions and answers
/// of `history`.
pub(super) fn read_preamble(row: &Row) -> Result<Vec<Value>, DataError> {
    Ok(Vec::from_iter(read_system(row)?).into_iter().chain(read_history(row)?).collect())
}

/// The same before turns that may begin with instructions of their own, which then count.
pub(super) fn with_preamble(row: &Row, mut messages: Vec<Value>) -> Result<Vec<Value>, DataError> {
    let instructed = messages.first().is_some_and(|first| first["role"] == "system");
    let behind = usize::from(instructed);
    messages.splice(behind..behind, read_history(row)?);
    if !instructed {
        messages.splice(..0, read_system(row)?);
    }
    Ok(messages)
}

pub(super) fn read_tools(row: &Row) -> Value {
    present(row, "tools").map_or(Value::Null, |tools| list_in_text(tools).unwrap_or_else(|| tools.clone()))
}

fn read_history(row: &Row) -> Result<Vec<Value>, DataError> {
    let mut messages = Vec::new();
    let Some(value) = present(row, "history") else { return Ok(messages) };
    let parsed = list_in_text(value);
    let list = match parsed.as_ref().unwrap_or(value) {
        Value::Array(list) => list,
        Value::String(text) if text.trim().is_empty() => return Ok(messages),
        _ => return Err(wrong_type(row, "history", value, "a list of [prompt, response]")),
    };
    for (i, turn) in list.iter().enumerate() {
        match turn.as_array().map(Vec::as_slice) {
            Some([Value::String(prompt), Value::String(response)]) => {
                messages.extend(as_conversation(prompt, response));
            }
            _ => {
                return Err(wrong_type(
                    row,
                    &format!("history[{i}]"),
                    turn,
                    "a list of two strings, [prompt, response]",
                ));
            }
        }
    }
    Ok(messages)
}

fn read_system(row: &Row) -> Result<Option<Value>, DataError> {
    match present(row, "system") {
        None => Ok(None),
        Some(Value::String(system)) if system.trim().is_empty() => Ok(None),
        Some(Value::String(system)) => Ok(Some(json!({"role": "system", "content": system}))),
        Some(other) => Err(wrong_type(row, "system", other, "a string")),
    }
}

/// The sample of a conversation, with what other columns say about it.
pub(super) fn with_columns(row: &Row, mut messages: Vec<Value>) -> Result<Sample, DataError> {
    // Some tables keep the instructions for a whole conversation in a column of their own.
    if messages.first().is_some_and(|first| first["role"] != "system")
        && let Some(system) = read_system(row)?
    {
        messages.insert(0, system);
    }
    let tools = read_tools(row);
    let labels = LABELS.into_iter().filter_map(|name| Some((name.to_owned(), present(row, name)?.clone()))).collect();
    Ok(Sample::Messages { messages, tools, labels })
}

pub(crate) fn read_message_list(row: &Row, column: &str, value: &Value) -> Result<Vec<Value>, DataError> {
    let parsed = list_in_text(value);
    let Value::Array(list) = parsed.as_ref().unwrap_or(value) else {
        return Err(wrong_type(row, column, value, "a list of messages"));
    };
    list.iter().enumerate().map(|(i, message)| read_message(row, &format!("{column}[{i}]"), message)).collect()
}

/// Tables of flat columns keep lists as JSON in a string.
fn list_in_text(value: &Value) -> Option<Value> {
    let text = value.as_str()?.trim_start();
    let list: Value = if text.starts_with('[') { serde_json::from_str(text).ok()? } else { return None };
    list.is_array().then_some(list)
}

fn read_message(row: &Row, place: &str, value: &Value) -> Result<Value, DataError> {
    let Value::Object(message) = value else {
        return Err(wrong_type(row, place, value, "an object"));
    };
    // Parquet gives every message every column: a null key would read as present in a template.
    let given = |key: &str| message.get(key).filter(|value| !value.is_null());
    let (role_key, content_key) = match (given("role"), given("from")) {
        (None, Some(_)) => ("from", "value"),
        _ => ("role", "content"),
    };
    let role = match given(role_key) {
        Some(Value::String(role)) => role.as_str(),
        other => {
            let found = other.unwrap_or(&Value::Null);
            return Err(wrong_type(row, &format!("{place}.{role_key}"), found, "a string"));
        }
    };
    let role = if role_key == "from" { speaker(row, place, role)? } else { role };
    // A turn that only calls tools has no content.
    let content = match given(content_key) {
        None if CALLS.iter().any(|key| given(key).is_some()) => Value::Null,
        found => read_content(row, &format!("{place}.{content_key}"), found.unwrap_or(&Value::Null))?,
    };
    if let Some(weight) = given("weight")
        && !matches!(weight.as_f64(), Some(0.0 | 1.0))
    {
        return Err(wrong_type(row, &format!("{place}.weight"), weight, "0 or 1"));
    }
    let mut kept = Map::from_iter([("role".to_owned(), json!(role)), ("content".to_owned(), content)]);
    let more = message.iter().filter(|(key, value)| !value.is_null() && *key != role_key && *key != content_key);
    kept.extend(more.map(|(key, value)| (key.clone(), value.clone())));
    Ok(Value::Object(kept))
}

fn speaker<'a>(row: &Row, place: &str, from: &'a str) -> Result<&'a str, DataError> {
    let known = SPEAKERS.iter().find(|(name, _)| name.eq_ignore_ascii_case(from));
    known.map(|(_, role)| *role).ok_or_else(|| DataError::UnknownSpeaker {
        at: row.at.clone(),
        place: format!("{place}.from"),
        speaker: from.to_owned(),
    })
}

/// A string, or a list of parts of which only texts can be learnt from.
fn read_content(row: &Row, place: &str, value: &Value) -> Result<Value, DataError> {
    let parts = match value {
        Value::String(_) => return Ok(value.clone()),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(row, place, other, "a string")),
    };
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let piece = match part {
            Value::String(piece) => Some(piece.as_str()),
            _ => part.get("text").and_then(Value::as_str),
        };
        let Some(piece) = piece else {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("no type").to_owned();
            return Err(DataError::NotATextPart { at: row.at.clone(), place: format!("{place}[{i}]"), kind });
        };
        text.push_str(piece);
    }
    Ok(Value::String(text))
}
