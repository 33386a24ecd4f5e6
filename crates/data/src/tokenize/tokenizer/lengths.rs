//! How many bytes of text each token stands for, where that follows from the token alone.
//!
//! Carrying offsets through a tokenizer costs more than the tokens themselves. With byte-level vocabularies and nothing
//! that rewrites the text before, a token is its bytes, so offsets are running sums.

use serde_json::Value;

use super::composed::composes_at_most;

pub(super) struct Lengths(Vec<u32>);

impl Lengths {
    /// `None` unless the pipeline is known to keep every byte of the text in its place.
    pub(super) fn of(inner: &tokenizers::Tokenizer, file: &Value, vocab_size: usize) -> Option<Self> {
        let rewrites = !composes_at_most(file);
        let trims = |token: &Value| token["lstrip"] == true || token["rstrip"] == true;
        let trimming = file["added_tokens"].as_array().is_some_and(|tokens| tokens.iter().any(trims));
        if rewrites || trimming || file["model"]["type"] != "BPE" || !is_byte_level(&file["pre_tokenizer"]) {
            return None;
        }
        let mut lengths = vec![0; vocab_size];
        for (token, id) in inner.get_vocab(false) {
            // One character of the byte-level alphabet for each byte.
            *lengths.get_mut(id as usize)? = u32::try_from(token.chars().count()).ok()?;
        }
        for (id, token) in inner.get_added_tokens_decoder() {
            *lengths.get_mut(id as usize)? = u32::try_from(token.content.len()).ok()?;
        }
        Some(Self(lengths))
    }

    /// Of a text that the tokenizer does not rewrite first; `None` if the tokens do not add up to it.
    pub(super) fn offsets(&self, ids: &[u32], text_bytes: usize) -> Option<Vec<(usize, usize)>> {
        let mut end = 0;
        let mut offsets = Vec::with_capacity(ids.len());
        for &id in ids {
            let start = end;
            end += *self.0.get(id as usize)? as usize;
            offsets.push((start, end));
        }
        (end == text_bytes).then_some(offsets)
    }
}

/// What each token adds to a decoded text, in bytes; special tokens add nothing.
pub(super) fn decoded(inner: &tokenizers::Tokenizer, vocab_size: usize) -> Vec<u32> {
    let decoder = serde_json::to_string(&inner.get_decoder()).unwrap_or_default();
    let spelt = Spelling::of(&decoder);
    let mut lengths = vec![0; vocab_size];
    for (token, id) in inner.get_vocab(false) {
        if let Some(length) = lengths.get_mut(id as usize) {
            *length = spelt.bytes(&token) as u32;
        }
    }
    for (id, token) in inner.get_added_tokens_decoder() {
        if let Some(length) = lengths.get_mut(id as usize) {
            *length = if token.special { 0 } else { token.content.len() as u32 };
        }
    }
    lengths
}

/// How a vocabulary spells its tokens.
enum Spelling {
    /// A letter for each byte.
    Bytes,
    /// Letters, `▁` for a space, and where `fallback` is set `<0x0A>` for a byte.
    Pieces { fallback: bool },
    /// Letters, with `##` before what goes on within a word.
    Words,
}

impl Spelling {
    /// `decoder` as JSON: its steps by their types.
    fn of(decoder: &str) -> Self {
        let has = |step: &str| decoder.contains(&format!("\"type\":\"{step}\""));
        if has("ByteLevel") {
            Self::Bytes
        } else if has("WordPiece") {
            Self::Words
        } else {
            Self::Pieces { fallback: has("ByteFallback") }
        }
    }

    fn bytes(&self, token: &str) -> usize {
        let is_byte = |token: &str| {
            let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
            digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
        };
        match self {
            Self::Bytes => token.chars().count(),
            Self::Pieces { fallback: true } if is_byte(token) => 1,
            Self::Pieces { .. } => token.chars().map(|c| if c == '▁' { 1 } else { c.len_utf8() }).sum(),
            // A word of its own has a space before it.
            Self::Words => token.strip_prefix("##").map_or(token.len() + 1, str::len),
        }
    }
}

/// A byte-level step without a prefix space, alone or behind a split that keeps what it splits at.
fn is_byte_level(step: &Value) -> bool {
    match step["type"].as_str() {
        Some("ByteLevel") => step["add_prefix_space"] == false,
        Some("Sequence") => {
            let Some(steps) = step["pretokenizers"].as_array() else { return false };
            let keeps = |step: &Value| match step["type"].as_str() {
                Some("Split") => step["behavior"] != "Removed",
                Some("Digits") => true,
                _ => is_byte_level(step),
            };
            steps.last().is_some_and(is_byte_level) && steps.iter().all(keeps)
        }
        _ => false,
    }
}
