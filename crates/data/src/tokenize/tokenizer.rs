//! A Hugging Face tokenizer: `tokenizer.json` and what the files beside it say about special tokens and chat.

mod byte_pairs;
mod composed;
mod files;
mod json;
mod lengths;
mod merge;
mod split;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use byte_pairs::BytePairs;
use composed::{composes, is_composed};
use files::Files;
pub(crate) use files::fingerprint;
use json::AnyJson;
use lengths::Lengths;
use serde_json::Value;

use crate::error::DataError;
use crate::template::{BUILT_IN_TEMPLATES, ChatTemplate};

pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    origin: String,
    vocab_size: usize,
    bos: Option<(String, u32)>,
    eos: Option<(String, u32)>,
    specials: BTreeMap<String, String>,
    /// Tokens before and behind a text; `None` where only the tokenizer itself knows.
    around: Option<(Vec<u32>, Vec<u32>)>,
    /// Where known, offsets come from adding up and need not be carried through the tokenizer.
    lengths: Option<Lengths>,
    /// Texts are composed (NFC) before they are split.
    composes: bool,
    /// The faster path, where it is known to lead to the same ids.
    byte_pairs: Option<BytePairs>,
    /// The sources of its own templates, by name.
    templates: BTreeMap<String, String>,
    chat: Option<ChatTemplate>,
    files_fingerprint: u128,
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
        let files = Files::read(folder)?;
        Self::build(&folder.join("tokenizer.json").display().to_string(), &files)
    }

    /// `origin` is the name errors use; `config` is the content of a `tokenizer_config.json`.
    pub fn from_bytes(origin: &str, tokenizer: &[u8], config: Option<&str>) -> Result<Self, DataError> {
        let files = Files { tokenizer: tokenizer.to_vec(), config: config.map(str::to_owned), ..Files::default() };
        Self::build(origin, &files)
    }

    fn build(origin: &str, files: &Files) -> Result<Self, DataError> {
        // The library panics where some of its parts are no JSON, as in a file that was cut off.
        serde_json::from_slice::<AnyJson>(&files.tokenizer).map_err(|error| corrupt(origin, error))?;
        let mut inner = tokenizers::Tokenizer::from_bytes(&files.tokenizer).map_err(|error| corrupt(origin, error))?;
        // A tokenizer.json may carry the settings of whoever saved it last; lengths are decided elsewhere.
        inner.with_truncation(None).map_err(|error| corrupt(origin, error))?;
        inner.with_padding(None);

        let config = files::parse(origin, "tokenizer_config.json", files.config.as_deref())?;
        let map = files::parse(origin, "special_tokens_map.json", files.special_tokens_map.as_deref())?;
        let specials = files::special_tokens(&config, &map);
        for (id, token) in files::unlisted_tokens(&config, &specials, &inner) {
            add_token(origin, &mut inner, id, token)?;
        }
        let with_id = |name: &str| {
            let token = specials.get(name)?;
            Some((token.clone(), inner.token_to_id(token)?))
        };
        let (bos, eos) = (with_id("bos_token"), with_id("eos_token"));
        let around = match files::around(&config) {
            Some((add_bos, add_eos)) => {
                let one =
                    |token: &Option<(String, u32)>, add: bool| token.iter().filter(|_| add).map(|t| t.1).collect();
                Some((one(&bos, add_bos), one(&eos, add_eos)))
            }
            None => probe_around(&inner),
        };
        let templates = files::templates(files, &config);
        let chat = templates.get("default").map(|source| ChatTemplate::new(origin, source, &specials)).transpose()?;
        // Ids may have gaps: what an embedding needs is the highest id, not the count.
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        let file: Value = serde_json::from_slice(&files.tokenizer).map_err(|error| corrupt(origin, error))?;
        let lengths = Lengths::of(&inner, &file, vocab_size);
        let composes = composes(&file);
        let byte_pairs = BytePairs::of(&inner, &file);
        let (origin, files_fingerprint) = (origin.to_owned(), files.fingerprint());
        Ok(Self {
            inner,
            origin,
            vocab_size,
            bos,
            eos,
            specials,
            around,
            lengths,
            composes,
            byte_pairs,
            templates,
            chat,
            files_fingerprint,
        })
    }

    /// What its chat template takes for the present, in place of the time when it was read.
    pub fn with_now(mut self, now: SystemTime) -> Self {
        self.chat.iter_mut().for_each(|chat| chat.set_now(now));
        self
    }

    /// Chooses the chat template: `auto` (its own), one of its own by name, a built-in one, or a file.
    pub fn with_template(mut self, choice: &str) -> Result<Self, DataError> {
        let is_file = choice.contains(['/', '\\']) || choice.ends_with(".jinja") || choice.ends_with(".j2");
        self.chat = if choice == "auto" {
            let own = self.templates.get("default");
            own.map(|source| ChatTemplate::new(&self.origin, source, &self.specials)).transpose()?
        } else if is_file {
            let source = std::fs::read_to_string(choice)
                .map_err(|source| DataError::Open { path: Path::new(choice).to_owned(), source })?;
            Some(ChatTemplate::new(choice, &source, &self.specials)?)
        } else if let Some(source) = self.templates.get(choice) {
            Some(ChatTemplate::new(&self.origin, source, &self.specials)?)
        } else if BUILT_IN_TEMPLATES.contains(&choice) {
            Some(self.built_in_template(choice)?)
        } else {
            let own = self.templates.keys().map(String::as_str);
            let known: Vec<&str> = ["auto"].into_iter().chain(own).chain(BUILT_IN_TEMPLATES).collect();
            return Err(DataError::UnknownTemplate { name: choice.to_owned(), known: known.join(", ") });
        };
        Ok(self)
    }

    pub(crate) fn built_in_template(&self, name: &str) -> Result<ChatTemplate, DataError> {
        ChatTemplate::built_in(name, &self.specials, |token| self.inner.token_to_id(token).is_some())
    }

    /// `add_special`: also what the tokenizer puts around a text (often a beginning-of-sequence token).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, DataError> {
        let own = add_special && self.around.is_none();
        let ids = self.ids(text, own)?;
        Ok(match &self.around {
            Some((before, behind)) if add_special && !(before.is_empty() && behind.is_empty()) => {
                [before, ids.as_slice(), behind].concat()
            }
            _ => ids,
        })
    }

    /// Whether the text is split as it stands.
    fn keeps(&self, text: &str) -> bool {
        !self.composes || is_composed(text)
    }

    /// `own`: with what only the tokenizer itself knows to put around a text.
    fn ids(&self, text: &str, own: bool) -> Result<Vec<u32>, DataError> {
        match &self.byte_pairs {
            Some(fast) if !own && self.keeps(text) => Ok(fast.encode(text)),
            _ => Ok(self.inner.encode_fast(text, own).map_err(|error| codec(&error))?.get_ids().to_vec()),
        }
    }

    pub fn encode_with_offsets(&self, text: &str, add_special: bool) -> Result<Encoded, DataError> {
        let own = add_special && self.around.is_none();
        let mut added_up = None;
        if let Some(lengths) = self.lengths.as_ref().filter(|_| !own && self.keeps(text)) {
            let ids = self.ids(text, false)?;
            added_up = lengths.offsets(&ids, text.len()).map(|offsets| Encoded { ids, offsets });
        }
        let mut encoded = match added_up {
            Some(encoded) => encoded,
            None => {
                let encoding = self.inner.encode(text, own).map_err(|error| codec(&error))?;
                Encoded { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() }
            }
        };
        if let Some((before, behind)) = self.around.as_ref().filter(|_| add_special) {
            let added = |count: usize| std::iter::repeat_n((0, 0), count);
            encoded.ids.splice(0..0, before.iter().copied());
            encoded.offsets.splice(0..0, added(before.len()));
            encoded.ids.extend(behind);
            encoded.offsets.extend(added(behind.len()));
        }
        Ok(encoded)
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, DataError> {
        self.inner.decode(ids, skip_special).map_err(|error| codec(&error))
    }

    /// One more than the highest token id.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The bytes that each token id stands for in a text, 0 for special tokens: what a loss per token is divided by to give
    /// bits per byte.
    pub fn byte_lengths(&self) -> Vec<u32> {
        lengths::decoded(&self.inner, self.vocab_size)
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

    /// The id of a token by the name that the files know it by, such as `pad_token`.
    pub fn special_id(&self, name: &str) -> Option<u32> {
        self.inner.token_to_id(self.specials.get(name)?)
    }

    /// The tokens put before a text and behind it; `None` where only the tokenizer itself knows.
    pub fn around(&self) -> Option<(&[u32], &[u32])> {
        self.around.as_ref().map(|(before, behind)| (before.as_slice(), behind.as_slice()))
    }

    pub fn eos_token(&self) -> Option<&str> {
        self.eos.as_ref().map(|(token, _)| token.as_str())
    }

    /// The template in use: the tokenizer's own, if it has one, or what was chosen.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// Of everything that decides which tokens a text becomes, the chat template in use included.
    pub fn fingerprint(&self) -> u128 {
        let template = self.chat.as_ref().map_or(0, ChatTemplate::fingerprint);
        let both = [self.files_fingerprint.to_le_bytes(), template.to_le_bytes()].concat();
        twox_hash::XxHash3_128::oneshot(&both)
    }

    /// What errors call it: the path of its `tokenizer.json`.
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

fn add_token(
    origin: &str,
    inner: &mut tokenizers::Tokenizer,
    id: u32,
    token: tokenizers::AddedToken,
) -> Result<(), DataError> {
    let content = token.content.clone();
    if token.special {
        inner.add_special_tokens([token]).map_err(|error| corrupt(origin, error))?;
    } else {
        inner.add_tokens([token]).map_err(|error| corrupt(origin, error))?;
    }
    match inner.token_to_id(&content) {
        Some(got) if got == id => Ok(()),
        got => {
            let got = got.map_or("none".to_owned(), |got| got.to_string());
            let reason = format!("tokenizer_config.json gives {content:?} the id {id}, tokenizer.json {got}");
            Err(corrupt(origin, reason))
        }
    }
}

/// What the tokenizer puts around a text, told from one.
fn probe_around(inner: &tokenizers::Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let (bare, whole) = (inner.encode_fast("a", false).ok()?, inner.encode_fast("a", true).ok()?);
    let (bare, whole) = (bare.get_ids(), whole.get_ids());
    let at = whole.windows(bare.len().max(1)).position(|window| window == bare)?;
    Some((whole[..at].to_vec(), whole[at + bare.len()..].to_vec()))
}

fn corrupt(origin: &str, error: impl ToString) -> DataError {
    DataError::TokenizerCorrupt { origin: origin.to_owned(), reason: error.to_string() }
}

fn codec(error: &impl ToString) -> DataError {
    DataError::Codec { reason: error.to_string() }
}
