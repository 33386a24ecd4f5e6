//! Candidates in a conversation, and how relevant each is.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::read::kind;

/// Columns with the relevances, in the order they are looked for.
const COLUMNS: [&str; 4] = ["auxiliary_labels", "labels", "scores", "relevance"];

/// What is ranked in a conversation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Candidates {
    /// The assistant's turns; those without a number are no candidates.
    Turns(Vec<Option<f32>>),
    /// Texts in the order in which they stand in the conversation.
    Texts(Vec<(String, f32)>),
}

impl Candidates {
    /// From what a row says about its conversation.
    pub(crate) fn read(labels: &Map<String, Value>) -> Result<Self, String> {
        let found = COLUMNS.into_iter().find_map(|name| Some((name, labels.get(name)?)));
        let Some((column, value)) = found else { return Err("the row does not say what is relevant".to_owned()) };
        // Tables of flat columns keep lists as JSON in a string.
        let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
        let value: &Value = parsed.as_ref().unwrap_or(value);
        let Value::Array(items) = value else { return Err(format!("`{column}` is {}, expected a list", kind(value))) };
        let place = |index: usize| format!("{column}[{index}]");
        if items.iter().any(Value::is_object) {
            let text = |(index, item): (usize, &Value)| match (item["text"].as_str(), &item["relevance"]) {
                (Some(text), number) if !text.is_empty() => Ok((text.to_owned(), relevance(&place(index), number)?)),
                _ => Err(format!("`{}` has no `text`", place(index))),
            };
            return items.iter().enumerate().map(text).collect::<Result<_, _>>().map(Self::Texts);
        }
        let turn = |(index, item): (usize, &Value)| match item {
            Value::Null => Ok(None),
            number => relevance(&place(index), number).map(Some),
        };
        items.iter().enumerate().map(turn).collect::<Result<_, _>>().map(Self::Turns)
    }

    /// Where in the rendered text each candidate ends, with its relevance. `answers` are the assistant's turns.
    pub(crate) fn ends(&self, text: &str, answers: &[Range<usize>]) -> Result<Vec<(usize, f32)>, String> {
        let ends: Vec<(usize, f32)> = match self {
            Self::Turns(turns) if turns.len() == answers.len() => {
                let given = turns.iter().zip(answers).filter(|(_, answer)| !answer.is_empty());
                given.filter_map(|(turn, answer)| Some((answer.end, (*turn)?))).collect()
            }
            Self::Turns(turns) => {
                return Err(format!("{} relevances for {} turns of the assistant", turns.len(), answers.len()));
            }
            Self::Texts(texts) => {
                let mut from = 0;
                let end = |(wanted, relevance): &(String, f32)| {
                    let start =
                        text[from..].find(wanted).ok_or_else(|| format!("{wanted:?} is not in the conversation"));
                    from += start? + wanted.len();
                    Ok((from, *relevance))
                };
                texts.iter().map(end).collect::<Result<_, String>>()?
            }
        };
        if ends.len() < 2 {
            return Err(format!("a ranking needs two candidates or more, the row has {}", ends.len()));
        }
        Ok(ends)
    }
}

fn relevance(place: &str, value: &Value) -> Result<f32, String> {
    let number = value.as_f64().filter(|number| number.is_finite() && *number >= 0.0);
    number
        .map(|number| number as f32)
        .ok_or_else(|| format!("`{place}` is {value}, expected a relevance of at least 0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(labels: Value, expected: Result<&[(usize, f32)], &str>) {
        let labels = Map::from_iter([("auxiliary_labels".to_owned(), labels)]);
        let (text, answers) = ("user: pick\nbot: red\nbot: blue red\n", [16..19, 25..33]);
        let found = Candidates::read(&labels).and_then(|candidates| candidates.ends(text, &answers));
        assert_eq!(found.as_deref(), expected.map_err(str::to_owned).as_ref().map(|ends| *ends));
    }

    #[test]
    fn turns_and_texts_are_found() {
        check(json!([1, 0.5]), Ok(&[(19, 1.0), (33, 0.5)]));
        check(json!("[0, 2]"), Ok(&[(19, 0.0), (33, 2.0)]));
        check(
            json!([{"text": "pick", "relevance": 3}, {"text": "red", "relevance": 0}, {"text": "red", "relevance": 1}]),
            Ok(&[(10, 3.0), (19, 0.0), (33, 1.0)]),
        );
    }

    #[test]
    fn what_cannot_be_ranked_is_refused() {
        check(json!([1]), Err("1 relevances for 2 turns of the assistant"));
        check(json!([1, null]), Err("a ranking needs two candidates or more, the row has 1"));
        check(json!([1, -1]), Err("`auxiliary_labels[1]` is -1, expected a relevance of at least 0"));
        check(json!({"a": 1}), Err("`auxiliary_labels` is an object, expected a list"));
        check(json!([{"text": "green", "relevance": 1}]), Err("\"green\" is not in the conversation"));
        check(json!([{"relevance": 1}]), Err("`auxiliary_labels[0]` has no `text`"));
    }
}
