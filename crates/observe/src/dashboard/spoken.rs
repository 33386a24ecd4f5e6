//! What the program says, for a page in another language. Figures and names are the same in all of them.

use std::collections::BTreeMap;

use plimsoll_speech::{Language, chinese};
use serde::Serialize;
use serde_json::Value;

use crate::picture::COLOURS;

/// Of plans: whole sentences.
const SENTENCES: [&str; 2] = ["said", "message"];
/// Of plans: words, or sentences of few.
const WORDS: [&str; 2] = ["why_not", "bound_by"];

/// The answer as JSON, its sentences in a language.
pub fn spoken(value: &impl Serialize, language: Language) -> Value {
    let mut value = serde_json::to_value(value).expect("plain data");
    say(&mut value, language);
    value
}

fn say(value: &mut Value, language: Language) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| say(item, language)),
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                match value {
                    Value::String(text) if SENTENCES.contains(&key.as_str()) => *text = language.say(text).into_owned(),
                    Value::String(text) if WORDS.contains(&key.as_str()) => *text = language.word(text).into_owned(),
                    Value::Array(plans) if key == "alternatives" => plans.iter_mut().for_each(|plan| {
                        // The name of a plan says what it does; other names are names.
                        if let Some(Value::String(name)) = plan.get_mut("name") {
                            *name = language.word(name).into_owned();
                        }
                        say(plan, language);
                    }),
                    _ => say(value, language),
                }
            }
        }
        _ => {}
    }
}

/// The words that the page's scripts have, and those of the pictures, in a language; none where that is theirs already.
pub fn words(scripts: &str, language: Language) -> BTreeMap<&'static str, &'static str> {
    if language == Language::English {
        return BTreeMap::new();
    }
    let fixed = chinese().entries.iter().filter(|entry| entry.english.holes.is_empty());
    let known = fixed.map(|entry| entry.source.as_str());
    let used = known.filter(|word| {
        scripts.contains(&format!("\"{word}\"")) || COLOURS.iter().any(|(category, ..)| category == word)
    });
    used.map(|word| (word, language.label(word))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sentences_are_said_and_names_are_left() {
        let planned = json!({
            "said": "error: `data.train` is missing",
            "report": {"device": "memory", "predicted": {"bound_by": "matmul"},
                "alternatives": [{"name": "fastest", "why_not": "1.50 GiB over the budget"}]},
            "name": "fastest",
        });
        assert_eq!(spoken(&planned, Language::English), planned);
        let said = spoken(&planned, Language::Chinese);
        assert_eq!(said["said"], "错误：缺少 `data.train`");
        assert_eq!((&said["name"], &said["report"]["device"]), (&json!("fastest"), &json!("memory")));
        let plan = &said["report"]["alternatives"][0];
        assert_eq!((&plan["name"], &plan["why_not"]), (&json!("最快"), &json!("超出预算 1.50 GiB")));
        assert_eq!(said["report"]["predicted"]["bound_by"], "矩阵乘");
    }
}
