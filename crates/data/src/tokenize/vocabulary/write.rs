//! The files of a trained tokenizer, as Hugging Face's AutoTokenizer reads them.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{VocabularyKind, VocabularyOptions, VocabularyProgress, failed};
use crate::error::DataError;
use crate::template::{built_in_end, built_in_source};
use crate::tokenize::Tokenizer;

/// A tokenizer that was trained, not yet in any folder.
#[derive(Debug, Clone)]
pub struct TrainedTokenizer {
    tokenizer: String,
    config: String,
    /// Tokens it has; fewer than asked for where the texts do not hold more.
    pub vocab_size: usize,
    /// What it was trained on.
    pub counted: VocabularyProgress,
}

impl TrainedTokenizer {
    /// File names with their content.
    pub fn files(&self) -> [(&'static str, &str); 2] {
        [("tokenizer.json", &self.tokenizer), ("tokenizer_config.json", &self.config)]
    }

    /// Writes the files into `folder`, which is made if it is not there. Each appears whole or not at all.
    pub fn save(&self, folder: &Path) -> Result<(), DataError> {
        for (name, text) in self.files() {
            let path = folder.join(name);
            fs::create_dir_all(folder)
                .and_then(|()| plimsoll_files::write(&path, text.as_bytes()))
                .map_err(|source| DataError::Write { path, source })?;
        }
        Ok(())
    }
}

/// The end of sequence, the template's markers, and what the user wants beside them; each once.
pub(super) fn special_tokens(options: &VocabularyOptions) -> Result<Vec<String>, DataError> {
    let mut tokens = vec![options.end.clone()];
    if let Some(name) = &options.template {
        tokens.extend(markers(name)?.iter().map(|&marker| marker.to_owned()));
    }
    tokens.extend(options.specials.iter().cloned());
    if let Some(empty) = tokens.iter().find(|token| token.trim().is_empty()) {
        return Err(failed(format!("{empty:?} cannot be a special token")));
    }
    let mut seen = std::collections::HashSet::new();
    tokens.retain(|token| seen.insert(token.clone()));
    Ok(tokens)
}

/// What a template writes that must be one token each.
fn markers(template: &str) -> Result<&'static [&'static str], DataError> {
    Ok(match template {
        "chatml" => &["<|im_start|>", "<|im_end|>"],
        "llama-3" => &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "gemma" => &["<start_of_turn>", "<end_of_turn>"],
        "zephyr" => &["<|user|>", "<|assistant|>", "<|system|>"],
        "phi-3" => &["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"],
        "mistral" => &["[INST]", "[/INST]"],
        other => {
            // Refuses names that are none.
            built_in_source(other, "")?;
            &[]
        }
    })
}

pub(super) fn finish(
    tokenizer: &tokenizers::Tokenizer,
    options: &VocabularyOptions,
    counted: VocabularyProgress,
) -> Result<TrainedTokenizer, DataError> {
    // A model stops at its end of sequence: where turns end otherwise, that is theirs. Padding stays what it was.
    let end = match &options.template {
        Some(name) => built_in_end(name, &options.end)?,
        None => options.end.clone(),
    };
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "pad_token": options.end,
        "clean_up_tokenization_spaces": false,
    });
    if options.kind == VocabularyKind::Unigram {
        config["unk_token"] = Value::from(super::UNKNOWN);
    }
    if let Some(name) = &options.template {
        config["chat_template"] = Value::from(built_in_source(name, &end)?);
    }
    let config = serde_json::to_string_pretty(&config).map_err(failed)?;
    let text = tokenizer.to_string(false).map_err(failed)?;
    // Read back as any other would be: what cannot be used is not written.
    let loaded = Tokenizer::from_bytes("the trained tokenizer", text.as_bytes(), Some(&config))?;
    Ok(TrainedTokenizer { tokenizer: text, config, vocab_size: loaded.vocab_size(), counted })
}
