//! Prompts from a file: a JSON value on each line.

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::failure::Failure;

/// What a text is to begin with.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    /// A conversation whose next answer is wanted.
    Messages(Vec<Json>),
}

impl Prompt {
    /// A text as what the user says first.
    pub fn as_conversation(self) -> Self {
        match self {
            Self::Text(text) => Self::Messages(vec![json!({"role": "user", "content": text})]),
            messages => messages,
        }
    }

    fn from_json(value: Json) -> Option<Self> {
        match value {
            Json::String(text) => Some(Self::Text(text)),
            Json::Object(mut row) => match (row.remove("prompt"), row.remove("messages")) {
                (Some(Json::String(text)), None) => Some(Self::Text(text)),
                (None, Some(Json::Array(messages))) if messages.iter().all(is_message) => {
                    Some(Self::Messages(messages))
                }
                _ => None,
            },
            _ => None,
        }
    }
}

fn is_message(message: &Json) -> bool {
    message["role"].is_string() && (message["content"].is_string() || message["content"].is_null())
}

/// The prompts of a file, one on each line that is not empty.
pub fn read_prompts(path: &Path) -> Result<Vec<Prompt>, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::bad_input(format!("cannot read {}: {error}", path.display())))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let prompts: Vec<Prompt> = lines.map(|(index, line)| read_line(path, index + 1, line)).collect::<Result<_, _>>()?;
    if prompts.is_empty() {
        return Err(Failure::bad_input(format!("{} holds no prompts", path.display())));
    }
    Ok(prompts)
}

fn read_line(path: &Path, number: usize, line: &str) -> Result<Prompt, Failure> {
    let place = format!("{}:{number}", path.display());
    let value = serde_json::from_str(line).map_err(|error| Failure::bad_input(format!("{place}: no JSON: {error}")))?;
    Prompt::from_json(value).ok_or_else(|| {
        Failure::bad_input(format!("{place}: no prompt"))
            .hint("a line is a JSON string, {\"prompt\": \"…\"} or {\"messages\": [{\"role\": \"user\", \"content\": \"…\"}]}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_prompts() {
        let read = |line: &str| read_line(Path::new("p.jsonl"), 3, line);
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(read(r#""a\nb""#), Ok(text("a\nb")));
        assert_eq!(read(r#"{"prompt": "a", "id": 7}"#), Ok(text("a")));
        let messages = vec![json!({"role": "user", "content": "a"})];
        assert_eq!(read(r#"{"messages": [{"role": "user", "content": "a"}]}"#), Ok(Prompt::Messages(messages.clone())));
        assert_eq!(text("a").as_conversation(), Prompt::Messages(messages));
        for bad in ["a", "7", r#"{"text": "a"}"#, r#"{"messages": ["a"]}"#, r#"{"prompt": "a", "messages": []}"#] {
            let failure = read(bad).expect_err(bad);
            assert!(failure.message().starts_with("p.jsonl:3: no "), "{failure}");
        }
    }
}
