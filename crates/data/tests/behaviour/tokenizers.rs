//! Loading a tokenizer from a Hugging Face folder.

use plimsoll_data::{DataError, Tokenizer, quickstart};
use serde_json::{Value, json};

use crate::fixtures::Folder;

fn folder_with(config: Option<&Value>) -> Folder {
    let folder = Folder::new();
    let [(name, text), _] = quickstart::tokenizer_files();
    folder.write(name, text);
    if let Some(config) = config {
        folder.write("tokenizer_config.json", config.to_string());
    }
    folder
}

fn turn(tokenizer: &Tokenizer) -> Option<String> {
    let messages = [json!({"role": "user", "content": "hi"})];
    let template = tokenizer.chat_template()?;
    Some(template.render(&messages, &Value::Null, true).expect("renders"))
}

#[test]
fn the_template_is_a_file_a_string_or_a_named_one() {
    let list = json!({"chat_template": [
        {"name": "tool_use", "template": "no"}, {"name": "default", "template": "named {{ messages[0].content }}"}]});
    let folder = folder_with(Some(&list));
    let load = |folder: &Folder| Tokenizer::from_folder(folder.path()).expect("loads");
    assert_eq!(turn(&load(&folder)).as_deref(), Some("named hi"));
    folder.write("chat_template.jinja", "file {{ messages[0].content }}");
    assert_eq!(turn(&load(&folder)).as_deref(), Some("file hi"));
    assert_eq!(turn(&load(&folder_with(None))), None);
}

#[test]
fn whatever_changes_tokens_changes_the_fingerprint() {
    let load = |folder: &Folder| Tokenizer::from_folder(folder.path()).expect("loads");
    let with = |tokenizer: Tokenizer, choice: &str| tokenizer.with_template(choice).expect("is known").fingerprint();
    let config = json!({"eos_token": "<|end|>", "chat_template": "own {{ messages[0].content }}"});
    let folder = folder_with(Some(&config));
    let own = load(&folder).fingerprint();
    assert_eq!(own, load(&folder).fingerprint());
    assert_eq!(own, with(load(&folder), "auto"));
    let file = folder.write("other.jinja", "other {{ messages[0].content }}").display().to_string();
    let of_file = with(load(&folder), &file);
    folder.write("other.jinja", "another {{ messages[0].content }}");
    let mut all = vec![own, of_file, with(load(&folder), &file), with(load(&folder), "chatml")];
    all.push(with(load(&folder), "zephyr"));
    all.push(load(&folder_with(Some(&json!({"eos_token": "<|end|>"})))).fingerprint());
    all.push(load(&folder_with(Some(&json!({"eos_token": "<|end|>", "add_eos_token": true})))).fingerprint());
    folder.write("special_tokens_map.json", json!({"bos_token": "<|user|>"}).to_string());
    all.push(load(&folder).fingerprint());
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn special_tokens_come_from_either_file() {
    let folder = folder_with(Some(&json!({"eos_token": "<|end|>", "bos_token": null})));
    let map = json!({"eos_token": "<|pad|>", "bos_token": {"content": "<|user|>"}});
    folder.write("special_tokens_map.json", map.to_string());
    let tokenizer = Tokenizer::from_folder(folder.path()).expect("loads");
    assert_eq!(tokenizer.eos_id(), Some(3), "tokenizer_config.json comes first");
    assert_eq!(tokenizer.bos_id(), Some(1));
}

#[test]
fn missing_and_corrupt_files_are_named() {
    let empty = Folder::new();
    let error = Tokenizer::from_folder(empty.path()).err().expect("is missing");
    assert!(matches!(error, DataError::TokenizerMissing { .. }), "{error}");
    assert!(error.to_string().contains("tokenizer.json is missing"), "{error}");

    for (name, content) in [
        ("tokenizer.json", "{\"version\": \"1.0\", "),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "[1]"),
        ("special_tokens_map.json", "oops"),
    ] {
        let folder = folder_with(None);
        folder.write(name, content);
        let error = Tokenizer::from_folder(folder.path()).err().expect("is corrupt");
        assert!(matches!(error, DataError::TokenizerCorrupt { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }

    let folder = folder_with(Some(&json!({"chat_template": "{% for %}"})));
    let error = Tokenizer::from_folder(folder.path()).err().expect("does not compile");
    assert!(matches!(error, DataError::BadTemplate { .. }), "{error}");
}

#[test]
fn truncation_saved_with_the_tokenizer_is_ignored() {
    let [(name, text), _] = quickstart::tokenizer_files();
    let mut json: Value = serde_json::from_str(&text).expect("is JSON");
    json["truncation"] = json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    let folder = Folder::new();
    folder.write(name, json.to_string());
    let tokenizer = Tokenizer::from_folder(folder.path()).expect("loads");
    assert_eq!(tokenizer.encode("twelve bytes", true).expect("encodes").len(), 12);
}
