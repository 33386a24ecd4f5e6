//! What the files of a Hugging Face tokenizer say beside the vocabulary: special tokens, templates, what goes around a
//! text.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::corrupt;
use crate::error::DataError;

/// The files that define a tokenizer, as text.
#[derive(Debug, Clone, Default)]
pub(super) struct Files {
    pub tokenizer: Vec<u8>,
    pub config: Option<String>,
    pub special_tokens_map: Option<String>,
    /// By name; the main one is `default`.
    pub templates: BTreeMap<String, String>,
}

impl Files {
    pub(super) fn read(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join("tokenizer.json");
        let tokenizer = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(DataError::TokenizerMissing { path });
            }
            Err(source) => return Err(DataError::Open { path, source }),
        };
        let mut templates = BTreeMap::new();
        if let Some(template) = optional(&folder.join("chat_template.jinja"))? {
            templates.insert("default".to_owned(), template);
        }
        if let Ok(more) = std::fs::read_dir(folder.join("additional_chat_templates")) {
            for path in more.filter_map(|entry| Some(entry.ok()?.path())) {
                let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".jinja"));
                if let (Some(name), Some(template)) = (name, optional(&path)?) {
                    templates.insert(name.to_owned(), template);
                }
            }
        }
        Ok(Self {
            tokenizer,
            config: optional(&folder.join("tokenizer_config.json"))?,
            special_tokens_map: optional(&folder.join("special_tokens_map.json"))?,
            templates,
        })
    }

    pub(super) fn fingerprint(&self) -> u128 {
        let config = self.config.as_deref().unwrap_or_default();
        let map = self.special_tokens_map.as_deref().unwrap_or_default();
        let templates = self.templates.iter().flat_map(|(name, source)| [name.as_str(), source.as_str()]);
        let texts = [config, map].into_iter().chain(templates).map(str::as_bytes);
        fingerprint([self.tokenizer.as_slice()].into_iter().chain(texts))
    }
}

/// Of several texts, each with its length before it, so that moving bytes from one to the next is a change.
pub(crate) fn fingerprint<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u128 {
    let mut joined = Vec::new();
    for part in parts {
        joined.extend((part.len() as u64).to_le_bytes());
        joined.extend(part);
    }
    twox_hash::XxHash3_128::oneshot(&joined)
}

fn optional(path: &Path) -> Result<Option<String>, DataError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DataError::Open { path: path.to_owned(), source }),
    }
}

pub(super) fn parse(origin: &str, name: &str, text: Option<&str>) -> Result<Map<String, Value>, DataError> {
    match text {
        None => Ok(Map::new()),
        Some(text) => serde_json::from_str(text).map_err(|error| corrupt(&format!("{name} beside {origin}"), error)),
    }
}

/// Every `*_token` by name. Each is a string, or an object whose `content` is the string.
pub(super) fn special_tokens(
    config: &Map<String, Value>,
    special_tokens_map: &Map<String, Value>,
) -> BTreeMap<String, String> {
    special_tokens_map
        .iter()
        .chain(config)
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| Some((name.clone(), content_of(value)?.to_owned())))
        .collect()
}

fn content_of(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Templates by name. `chat_template` is one, or a list of named ones; files of their own come first.
pub(super) fn templates(files: &Files, config: &Map<String, Value>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    match config.get("chat_template") {
        Some(Value::String(source)) => {
            found.insert("default".to_owned(), source.clone());
        }
        Some(Value::Array(named)) => {
            let entry =
                |entry: &Value| Some((entry["name"].as_str()?.to_owned(), entry["template"].as_str()?.to_owned()));
            found.extend(named.iter().filter_map(entry));
        }
        _ => {}
    }
    found.extend(files.templates.clone());
    found
}

/// `add_bos_token` and `add_eos_token`; as for Hugging Face, naming one of them decides both.
pub(super) fn around(config: &Map<String, Value>) -> Option<(bool, bool)> {
    let flag = |name: &str| config.get(name).and_then(Value::as_bool);
    match (flag("add_bos_token"), flag("add_eos_token")) {
        (None, None) => None,
        (bos, eos) => Some((bos.unwrap_or(false), eos.unwrap_or(false))),
    }
}

/// Tokens that must never be split although `tokenizer.json` does not list them: those of `added_tokens_decoder` with
/// their ids, and special tokens that are in the vocabulary. In the order of their ids.
pub(super) fn unlisted_tokens(
    config: &Map<String, Value>,
    specials: &BTreeMap<String, String>,
    inner: &tokenizers::Tokenizer,
) -> Vec<(u32, AddedToken)> {
    let listed = inner.get_added_tokens_decoder();
    let is_listed = |content: &str| listed.values().any(|token| token.content == content);
    let mut found = BTreeMap::new();
    let more = config.get("additional_special_tokens").and_then(Value::as_array);
    let more = more.into_iter().flatten().filter_map(content_of);
    for content in specials.values().map(String::as_str).chain(more) {
        if let Some(id) = inner.token_to_id(content).filter(|_| !is_listed(content)) {
            found.insert(id, AddedToken::from(content, true));
        }
    }
    let decoder = config.get("added_tokens_decoder").and_then(Value::as_object);
    for (id, token) in decoder.into_iter().flatten() {
        let (Ok(id), Some(content)) = (id.parse::<u32>(), content_of(token)) else { continue };
        if is_listed(content) {
            continue;
        }
        let flag = |name: &str| token.get(name).and_then(Value::as_bool);
        let added = AddedToken::from(content, flag("special").unwrap_or(false))
            .lstrip(flag("lstrip").unwrap_or(false))
            .rstrip(flag("rstrip").unwrap_or(false))
            .single_word(flag("single_word").unwrap_or(false));
        let added = match flag("normalized") {
            Some(normalized) => added.normalized(normalized),
            None => added,
        };
        found.insert(id, added);
    }
    found.into_iter().collect()
}
