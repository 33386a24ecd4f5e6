//! Which token an exported model with a head at last tokens is told to be padding.

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use crate::TextFiles;

/// Where a tokenizer's special tokens are named; both are read.
const NAMING_FILES: [&str; 2] = ["tokenizer_config.json", "special_tokens_map.json"];

/// Hugging Face takes the last token that is no padding for a sequence's last. So the configuration must name the token
/// that the tokenizer pads with, and that may be none that a sequence ends with, as the end of sequence is, though it is
/// common: the score would be read one token early. Where the tokenizer has no fit token of its own, it gets one.
pub(crate) fn name_padding(config: &mut Json, files: &mut TextFiles) {
    let tokens = SpecialTokens::read(files);
    let ends = |id: u64| {
        let eos = &config["eos_token_id"];
        let listed = eos.as_array().is_some_and(|all| all.contains(&json!(id)));
        *eos == json!(id) || listed || tokens.id("eos_token") == Some(id)
    };
    let configured = |key: &str| config[key].as_u64();
    let candidates = [
        tokens.id("pad_token"),
        configured("pad_token_id"),
        tokens.id("unk_token"),
        tokens.id("bos_token"),
        configured("bos_token_id"),
    ];
    let padding = candidates.into_iter().flatten().find(|&id| !ends(id)).unwrap_or(0);
    config["pad_token_id"] = json!(padding);
    if tokens.id("pad_token") != Some(padding)
        && let Some(content) = tokens.content(padding)
    {
        name_pad_token(files, content);
    }
}

/// A tokenizer's special tokens by what they are for, and the ids of those it lists.
struct SpecialTokens {
    named: Map<String, Json>,
    listed: Vec<AddedToken>,
}

/// Of `tokenizer.json`, which also has the vocabulary, only this is read.
#[derive(Deserialize, Default)]
struct AddedTokens {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
}

impl SpecialTokens {
    fn read(files: &TextFiles) -> Self {
        let file = |wanted: &str| files.iter().find(|(name, _)| name == wanted).map(|(_, bytes)| bytes.as_slice());
        let mut named = Map::new();
        for name in NAMING_FILES.into_iter().rev() {
            named.extend(
                file(name).and_then(|bytes| serde_json::from_slice::<Map<_, _>>(bytes).ok()).unwrap_or_default(),
            );
        }
        let listed = file("tokenizer.json").and_then(|bytes| serde_json::from_slice::<AddedTokens>(bytes).ok());
        Self { named, listed: listed.unwrap_or_default().added_tokens }
    }

    fn id(&self, purpose: &str) -> Option<u64> {
        let named = self.named.get(purpose)?;
        let content = named.as_str().or_else(|| named.get("content")?.as_str())?;
        self.listed.iter().find(|token| token.content == content).map(|token| token.id)
    }

    fn content(&self, id: u64) -> Option<&str> {
        self.listed.iter().find(|token| token.id == id).map(|token| token.content.as_str())
    }
}

fn name_pad_token(files: &mut TextFiles, content: &str) {
    for (name, bytes) in files.iter_mut().filter(|(name, _)| NAMING_FILES.contains(&name.as_str())) {
        let Ok(mut keys) = serde_json::from_slice::<Map<String, Json>>(bytes) else { continue };
        // The one that is always there names it; the other only if it did before.
        if name == NAMING_FILES[0] || keys.contains_key("pad_token") {
            keys.insert("pad_token".to_owned(), json!(content));
            *bytes = serde_json::to_vec_pretty(&keys).expect("plain data");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(config: Json) -> TextFiles {
        let listed = ["<unk>", "<s>", "</s>", "<pad>"].into_iter().enumerate();
        let listed: Vec<Json> = listed.map(|(id, content)| json!({"id": id, "content": content})).collect();
        let tokenizer = json!({"added_tokens": listed, "model": {"vocab": {"a": 4}}});
        let file = |name: &str, json: &Json| (name.to_owned(), json.to_string().into_bytes());
        vec![file("tokenizer.json", &tokenizer), file("tokenizer_config.json", &config)]
    }

    #[track_caller]
    fn check(tokenizer: Json, model: Json, id: u64, named: &str) {
        let (mut config, mut files) = (model, files(tokenizer));
        name_padding(&mut config, &mut files);
        assert_eq!(config["pad_token_id"], id);
        let written: Json = serde_json::from_slice(&files[1].1).expect("JSON");
        let found = &written["pad_token"];
        assert_eq!(found.as_str().or(found["content"].as_str()), Some(named));
    }

    #[test]
    fn tokenizer_and_configuration_name_one_token_that_ends_nothing() {
        // The tokenizer's own, in either spelling, whatever the model's configuration had.
        check(json!({"pad_token": "<pad>", "eos_token": "</s>"}), json!({"pad_token_id": 0}), 3, "<pad>");
        check(json!({"pad_token": {"content": "<pad>"}}), json!({"eos_token_id": 2}), 3, "<pad>");
        // It pads with the end of sequence.
        check(json!({"pad_token": "</s>", "eos_token": "</s>", "unk_token": "<unk>"}), json!({}), 0, "<unk>");
        check(json!({"pad_token": "</s>", "bos_token": "<s>"}), json!({"eos_token_id": [2, 5]}), 1, "<s>");
        // It pads with nothing.
        check(json!({"eos_token": "</s>"}), json!({"pad_token_id": 3}), 3, "<pad>");
    }

    #[test]
    fn without_a_tokenizer_the_configuration_decides() {
        for (mut config, expected) in [
            (json!({"pad_token_id": 7, "eos_token_id": 2}), 7),
            (json!({"pad_token_id": 2, "eos_token_id": 2, "bos_token_id": 1}), 1),
            (json!({"eos_token_id": 2}), 0),
        ] {
            name_padding(&mut config, &mut Vec::new());
            assert_eq!(config["pad_token_id"], expected);
        }
    }
}
