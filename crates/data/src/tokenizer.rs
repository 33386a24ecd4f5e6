//! A Hugging Face tokenizer: `tokenizer.json` and what the files beside it say about special tokens and chat.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};

use crate::chat::ChatTemplate;
use crate::error::DataError;

/// The files that define a tokenizer, as text.
#[derive(Debug, Clone, Default)]
struct Files {
    tokenizer: Vec<u8>,
    config: Option<String>,
    special_tokens_map: Option<String>,
    chat_template: Option<String>,
}

impl Files {
    fn fingerprint(&self) -> u128 {
        let text = |text: &Option<String>| text.clone().unwrap_or_default().into_bytes();
        let parts =
            [self.tokenizer.clone(), text(&self.config), text(&self.special_tokens_map), text(&self.chat_template)];
        // Each with its length before it, so that moving bytes from one to the next is a change.
        let joined: Vec<u8> =
            parts.iter().flat_map(|part| (part.len() as u64).to_le_bytes().into_iter().chain(part.clone())).collect();
        twox_hash::XxHash3_128::oneshot(&joined)
    }
}

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    origin: String,
    vocab_size: usize,
    bos: Option<(String, u32)>,
    eos: Option<(String, u32)>,
    chat: Option<ChatTemplate>,
    fingerprint: u128,
}

/// Token ids and, for each, the bytes of the text it stands for. Tokens that a post-processor added have `(0, 0)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    pub ids: Vec<u32>,
    pub offsets: Vec<(usize, usize)>,
}

impl Tokenizer {
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self, DataError> {
        let folder = folder.as_ref();
        let path = folder.join("tokenizer.json");
        let tokenizer = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(DataError::TokenizerMissing { path });
            }
            Err(source) => return Err(DataError::Open { path, source }),
        };
        let files = Files {
            tokenizer,
            config: optional(folder, "tokenizer_config.json")?,
            special_tokens_map: optional(folder, "special_tokens_map.json")?,
            chat_template: optional(folder, "chat_template.jinja")?,
        };
        Self::build(&path.display().to_string(), &files)
    }

    /// `origin` is the name errors use; `config` is the content of a `tokenizer_config.json`.
    pub fn from_bytes(origin: &str, tokenizer: &[u8], config: Option<&str>) -> Result<Self, DataError> {
        let files = Files { tokenizer: tokenizer.to_vec(), config: config.map(str::to_owned), ..Files::default() };
        Self::build(origin, &files)
    }

    fn build(origin: &str, files: &Files) -> Result<Self, DataError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(&files.tokenizer).map_err(|error| corrupt(origin, error))?;
        // A tokenizer.json may carry the settings of whoever saved it last; lengths are decided elsewhere.
        inner.with_truncation(None).map_err(|error| corrupt(origin, error))?;
        inner.with_padding(None);

        let config = parse(origin, "tokenizer_config.json", files.config.as_deref())?;
        let map = parse(origin, "special_tokens_map.json", files.special_tokens_map.as_deref())?;
        let specials = special_tokens(&config, &map);
        let with_id = |name: &str| {
            let token = specials.get(name)?;
            Some((token.clone(), inner.token_to_id(token)?))
        };
        let (bos, eos) = (with_id("bos_token"), with_id("eos_token"));
        let source = files.chat_template.clone().or_else(|| template_in(&config));
        let chat = source.map(|source| ChatTemplate::new(origin, &source, &specials)).transpose()?;
        // Ids may have gaps: what an embedding needs is the highest id, not the count.
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        let fingerprint = files.fingerprint();
        Ok(Self { inner, origin: origin.to_owned(), vocab_size, bos, eos, chat, fingerprint })
    }

    /// `add_special`: also what the tokenizer puts around a text (often a beginning-of-sequence token).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, DataError> {
        let encoding = self.inner.encode_fast(text, add_special).map_err(|error| codec(&error))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn encode_with_offsets(&self, text: &str, add_special: bool) -> Result<Encoded, DataError> {
        let encoding = self.inner.encode(text, add_special).map_err(|error| codec(&error))?;
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() })
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, DataError> {
        self.inner.decode(ids, skip_special).map_err(|error| codec(&error))
    }

    /// One more than the highest token id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub fn bos_id(&self) -> Option<u32> {
        self.bos.as_ref().map(|(_, id)| *id)
    }

    pub fn eos_id(&self) -> Option<u32> {
        self.eos.as_ref().map(|(_, id)| *id)
    }

    pub fn eos_token(&self) -> Option<&str> {
        self.eos.as_ref().map(|(token, _)| token.as_str())
    }

    /// The tokenizer's own template, if it has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// Of everything that decides which tokens a text becomes, the chat template included.
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// What errors call it: the path of its `tokenizer.json`.
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

fn optional(folder: &Path, name: &str) -> Result<Option<String>, DataError> {
    let path = folder.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DataError::Open { path, source }),
    }
}

fn parse(origin: &str, name: &str, text: Option<&str>) -> Result<Map<String, Value>, DataError> {
    match text {
        None => Ok(Map::new()),
        Some(text) => serde_json::from_str(text).map_err(|error| corrupt(&format!("{name} beside {origin}"), error)),
    }
}

/// Every `*_token` by name. Each is a string, or an object whose `content` is the string.
fn special_tokens(config: &Map<String, Value>, special_tokens_map: &Map<String, Value>) -> BTreeMap<String, String> {
    special_tokens_map
        .iter()
        .chain(config)
        .filter(|(name, _)| name.ends_with("_token"))
        .filter_map(|(name, value)| {
            let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((name.clone(), text.to_owned()))
        })
        .collect()
}

/// `chat_template` is one template, or a list of named ones of which `default` counts.
fn template_in(config: &Map<String, Value>) -> Option<String> {
    match config.get("chat_template")? {
        Value::String(source) => Some(source.clone()),
        Value::Array(named) => {
            let default = named.iter().find(|entry| entry["name"] == "default")?;
            default["template"].as_str().map(str::to_owned)
        }
        _ => None,
    }
}

fn corrupt(origin: &str, error: impl ToString) -> DataError {
    DataError::TokenizerCorrupt { origin: origin.to_owned(), reason: error.to_string() }
}

fn codec(error: &impl ToString) -> DataError {
    DataError::Codec { reason: error.to_string() }
}
