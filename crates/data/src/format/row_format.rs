//! What a row means: a text, a question with its answer, a conversation, or two answers to compare.

use std::str::FromStr;

use serde_json::{Map, Value, json};

use crate::error::DataError;
use crate::read::{Row, kind};
use crate::visible::visible;

use super::conversation;
use super::pairs::{self, Preference};

/// What the user says the rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Decided by the first row.
    #[default]
    Auto,
    As(RowFormat),
}

/// What the rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    Text,
    /// A text in the column `prompt`, without a response.
    Prompt,
    PromptResponse,
    /// The same with lists of {role, content} on one side or both.
    PromptMessages,
    Messages,
    /// ShareGPT's manner of them.
    Conversations,
    Pairs,
}

/// A row's content, free of how its columns were called.
#[derive(Debug, Clone, PartialEq)]
pub enum Sample {
    Text(String),
    PromptResponse {
        prompt: String,
        response: String,
    },
    /// Objects with `role` and `content`; further keys (`tool_calls`, `name`) go to the template as they are.
    Messages {
        messages: Vec<Value>,
        tools: Value,
        /// What the row says about the conversation (`auxiliary_labels`, `labels`, `label`, `scores`, `score`), untouched.
        /// Templates never see it; tasks that rank or score answers do.
        labels: Map<String, Value>,
    },
    Pair(Preference),
}

/// Every column some shape reads: what is worth decoding from a table with many more.
pub(crate) const COLUMNS: [&str; 26] = [
    "answer",
    "auxiliary_labels",
    "chosen",
    "chosen_response",
    "class",
    "completion",
    "conversation",
    "conversations",
    "history",
    "input",
    "instruction",
    "label",
    "labels",
    "messages",
    "output",
    "prompt",
    "query",
    "question",
    "rejected",
    "rejected_response",
    "response",
    "score",
    "scores",
    "system",
    "text",
    "tools",
];

const PAIRS: [(&str, &str); 7] = [
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("query", "response"),
    ("input", "output"),
];

const ACCEPT_ALL: &str = "`text`; `prompt` with `response` or `completion`; `instruction` (and `input`) with `output`; \
    `question` with `answer`; `messages` (a list of {role, content}); `conversations` (a list of {from, value}); \
    for `task: reward`, `prompt` with `chosen` and `rejected`";

const ACCEPT_LABELLED: &str = "`text`, `prompt`, `messages` or `conversations`, with `label`";

impl RowFormat {
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Prompt => "prompt",
            Self::PromptResponse => "prompt-response",
            Self::PromptMessages => "prompt-messages",
            Self::Messages => "messages",
            Self::Conversations => "conversations",
            Self::Pairs => "pairs",
        }
    }

    pub(crate) fn accepts(self) -> &'static str {
        match self {
            Self::Text => "`text`",
            Self::Prompt => "`prompt`",
            Self::PromptResponse => {
                "`prompt` with `response` or `completion`, `instruction` (and `input`) with `output`, `question` with `answer`"
            }
            Self::PromptMessages => "`prompt` with `completion` as lists of {role, content}",
            Self::Messages => "`messages` (a list of {role, content})",
            Self::Conversations => "`conversations` (a list of {from, value} or {role, content})",
            Self::Pairs => pairs::ACCEPTS,
        }
    }

    /// The richest shape wins: a table with `messages` often carries a flat `prompt` or `text` beside it.
    pub fn detect(row: &Row) -> Result<Self, DataError> {
        if present(row, "messages").is_some() {
            Ok(Self::Messages)
        } else if conversation::conversations_of(row).is_some() {
            Ok(Self::Conversations)
        } else if let Some((ask, answer)) = pair_of(row) {
            let lists = row.columns[ask].is_array() || row.columns[answer].is_array();
            Ok(if lists { Self::PromptMessages } else { Self::PromptResponse })
        } else if present(row, "text").is_some() {
            Ok(Self::Text)
        } else if pairs::detects(row) {
            Ok(Self::Pairs)
        } else {
            Err(missing(row, "training text", ACCEPT_ALL))
        }
    }

    /// What a row with a class is: the richest format, whether it has an answer or not.
    pub(crate) fn detect_labelled(row: &Row) -> Result<Self, DataError> {
        let only_prompt = present(row, "prompt").is_some() && pair_of(row).is_none() && present(row, "text").is_none();
        if only_prompt && present(row, "messages").is_none() && conversation::conversations_of(row).is_none() {
            return Ok(Self::Prompt);
        }
        match Self::detect(row)? {
            Self::Pairs => Err(missing(row, "a text to classify", ACCEPT_LABELLED)),
            format => Ok(format),
        }
    }

    pub(crate) fn has_prompt_and_response(row: &Row) -> bool {
        pair_of(row).is_some()
    }

    /// The row's content; a conversation must have an answer to learn from.
    pub fn read(self, row: &Row) -> Result<Sample, DataError> {
        match self.read_any(row)? {
            Sample::Messages { messages, .. } if !messages.iter().any(conversation::is_learnt) => {
                Err(DataError::NoAnswer { at: row.at.clone() })
            }
            sample => Ok(sample),
        }
    }

    /// The row's content, with or without an answer.
    pub(crate) fn read_any(self, row: &Row) -> Result<Sample, DataError> {
        let text = |column: &str, wanted| match present(row, column) {
            Some(value) => Ok(Sample::Text(string(row, column, value)?)),
            None => Err(missing(row, wanted, self.accepts())),
        };
        match self {
            Self::Text => text("text", "format `text`"),
            Self::Prompt => text("prompt", "format `prompt`"),
            Self::PromptResponse | Self::PromptMessages => read_pair(row),
            Self::Messages | Self::Conversations => conversation::read_messages(row, self),
            Self::Pairs => Ok(Sample::Pair(pairs::read(row)?)),
        }
    }

    /// Whether the row cannot be written without a chat template.
    pub(crate) fn is_conversation(self, row: &Row) -> bool {
        match self.read_any(row) {
            Ok(Sample::Messages { .. }) => true,
            Ok(Sample::Pair(preference)) => matches!(preference, Preference::Conversations { .. }),
            Ok(Sample::Text(_) | Sample::PromptResponse { .. }) | Err(_) => false,
        }
    }

    /// What the row is taken for, and which of its columns that uses: `prompt-response: columns instruction, output`.
    pub fn explain(self, row: &Row) -> String {
        let mut columns: Vec<&str> = match self {
            Self::Text => vec!["text"],
            Self::Prompt => vec!["prompt"],
            Self::PromptResponse | Self::PromptMessages => {
                pair_of(row).map_or(Vec::new(), |(ask, answer)| vec!["system", "history", ask, "input", answer])
            }
            Self::Messages => vec!["system", "messages", "tools"],
            Self::Conversations => vec!["system", "conversations", "conversation", "tools"],
            Self::Pairs => pairs::columns_of(row),
        };
        columns.retain(|name| present(row, name).is_some());
        columns.dedup();
        // Only an instruction has an input beside it.
        if self == Self::PromptResponse && pair_of(row).is_some_and(|(ask, _)| ask != "instruction" && ask != "input") {
            columns.retain(|name| *name != "input");
        }
        let what = if columns.len() == 1 { "column" } else { "columns" };
        format!("{}: {what} {}", self.name(), columns.join(", "))
    }
}

impl Format {
    pub const NAMES: [&str; 7] =
        ["auto", "text", "prompt-response", "prompt-messages", "messages", "conversations", "pairs"];

    pub fn resolve(self, first: &Row) -> Result<RowFormat, DataError> {
        match self {
            Self::Auto => RowFormat::detect(first),
            Self::As(shape) => Ok(shape),
        }
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "text" => Ok(Self::As(RowFormat::Text)),
            "prompt-response" => Ok(Self::As(RowFormat::PromptResponse)),
            "prompt-messages" => Ok(Self::As(RowFormat::PromptMessages)),
            "messages" => Ok(Self::As(RowFormat::Messages)),
            "conversations" => Ok(Self::As(RowFormat::Conversations)),
            "pairs" => Ok(Self::As(RowFormat::Pairs)),
            _ => Err(format!("unknown format `{name}`; allowed: {}", Self::NAMES.join(", "))),
        }
    }
}

fn read_pair(row: &Row) -> Result<Sample, DataError> {
    let Some((ask, answer)) = pair_of(row) else {
        let (wanted, accepted) = ("format `prompt-response`", RowFormat::PromptResponse.accepts());
        return Err(missing(row, wanted, accepted));
    };
    let (question, reply) = (&row.columns[ask], &row.columns[answer]);
    if question.is_array() || reply.is_array() {
        let mut messages = conversation::read_turns(row, ask, question, "user")?;
        // Answers that the prompt quotes are not what is to be learnt.
        for message in messages.iter_mut().filter(|message| message["role"] == "assistant") {
            message["weight"] = json!(0);
        }
        messages.extend(conversation::read_turns(row, answer, reply, "assistant")?);
        let messages = conversation::with_preamble(row, messages)?;
        return conversation::with_columns(row, messages);
    }
    let prompt = question_text(row, ask)?;
    let response = string(row, answer, reply)?;
    let mut messages = conversation::read_preamble(row)?;
    if messages.is_empty() {
        return Ok(Sample::PromptResponse { prompt, response });
    }
    messages.extend(as_conversation(&prompt, &response));
    conversation::with_columns(row, messages)
}

/// An instruction may have an input that belongs to it.
pub(super) fn question_text(row: &Row, ask: &str) -> Result<String, DataError> {
    let mut question = string(row, ask, &row.columns[ask])?;
    if ask == "instruction"
        && let Some(input) = present(row, "input")
    {
        let input = string(row, "input", input)?;
        if !input.is_empty() {
            question.push_str("\n\n");
            question.push_str(&input);
        }
    }
    Ok(question)
}

/// A question and its answer as the conversation a chat template expects.
pub(crate) fn as_conversation(prompt: &str, response: &str) -> Vec<Value> {
    vec![json!({"role": "user", "content": prompt}), json!({"role": "assistant", "content": response})]
}

pub(crate) fn present<'a>(row: &'a Row, column: &str) -> Option<&'a Value> {
    row.columns.get(column).filter(|value| !value.is_null())
}

fn pair_of(row: &Row) -> Option<(&'static str, &'static str)> {
    let both = |(ask, answer): &(&str, &str)| present(row, ask).is_some() && present(row, answer).is_some();
    PAIRS.into_iter().find(both)
}

pub(crate) fn string(row: &Row, column: &str, value: &Value) -> Result<String, DataError> {
    match value {
        Value::String(text) => Ok(text.clone()),
        other => Err(wrong_type(row, column, other, "a string")),
    }
}

pub(crate) fn wrong_type(row: &Row, column: &str, value: &Value, expected: &'static str) -> DataError {
    DataError::WrongType { at: row.at.clone(), column: visible(column).into_owned(), found: kind(value), expected }
}

pub(crate) fn missing(row: &Row, wanted: &'static str, accepted: &'static str) -> DataError {
    let names: Vec<String> = row
        .columns
        .iter()
        .map(|(name, value)| match value {
            Value::Null => format!("`{}` (null)", visible(name)),
            _ => format!("`{}`", visible(name)),
        })
        .collect();
    let columns = if names.is_empty() { "no columns".to_owned() } else { names.join(", ") };
    DataError::MissingColumn { at: row.at.clone(), wanted, columns, accepted }
}
