//! A tokenizer as llama.cpp knows it: pieces with their kinds, and by which rules text is cut.

use std::path::Path;

use plimsoll_data::Tokenizer;
use serde_json::Value as Json;

use super::cutting::{Scheme, scheme};
use super::format::{Item, Keys};
use crate::TrainError;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
/// Written by templates and never part of a text.
const CONTROL: i32 = 3;
/// Found in texts before they are cut.
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Of pieces that no merge makes, so that none is preferred.
const NEVER: f32 = -1e9;

/// Puts the tokenizer of a folder among the keys; what should be known about it comes back.
pub(super) fn describe(folder: &Path, rows: usize, keys: &mut Keys) -> Result<Vec<String>, TrainError> {
    let path = folder.join("tokenizer.json");
    if !path.exists() {
        keys.put("tokenizer.ggml.model", Item::Text("no_vocab"));
        return Ok(vec![format!("{} is missing: the file has no tokenizer", path.display())]);
    }
    let tokenizer = Tokenizer::from_folder(folder)?;
    if tokenizer.vocab_size() > rows {
        return Err(TrainError::Vocabulary { tokenizer: tokenizer.vocab_size(), model: rows });
    }
    let unusable = |reason: String| TrainError::Gguf { reason: format!("{}: {reason}", path.display()) };
    let text = std::fs::read(&path).map_err(|error| unusable(error.to_string()))?;
    let file: Json = serde_json::from_slice(&text).map_err(|error| unusable(error.to_string()))?;
    let scheme = scheme(&file).map_err(unusable)?;
    put_scheme(&scheme, keys);
    put_pieces(&pieces(&file, &scheme, rows), &scheme, &file, keys);
    put_specials(&tokenizer, keys);
    Ok(scheme.notes)
}

fn put_scheme(scheme: &Scheme, keys: &mut Keys) {
    keys.put("tokenizer.ggml.model", Item::Text(scheme.model));
    // Where it is missing, llama.cpp warns.
    keys.put("tokenizer.ggml.pre", Item::Text(scheme.pre));
    if scheme.model == "gpt2" {
        return;
    }
    keys.put("tokenizer.ggml.add_space_prefix", Item::Flag(scheme.space_before));
    keys.put("tokenizer.ggml.remove_extra_whitespaces", Item::Flag(scheme.joins_spaces));
    if let Some(map) = &scheme.charsmap {
        keys.put("tokenizer.ggml.precompiled_charsmap", Item::Bytes(map));
    }
}

#[derive(Debug, Default)]
struct Pieces {
    texts: Vec<String>,
    kinds: Vec<i32>,
    scores: Vec<f32>,
}

/// One for each row of the embedding; rows without a token are called by their number.
fn pieces(file: &Json, scheme: &Scheme, rows: usize) -> Pieces {
    let texts = (0..rows).map(|id| format!("[PAD{id}]")).collect();
    let mut pieces = Pieces { texts, kinds: vec![UNUSED; rows], scores: vec![NEVER; rows] };
    let mut put = |id: usize, text: &str, kind: i32, score: f32| {
        if id < rows {
            text.clone_into(&mut pieces.texts[id]);
            (pieces.kinds[id], pieces.scores[id]) = (kind, score);
        }
    };
    let model = &file["model"];
    let unknown = model["unk_token"].as_str();
    let kind = |text: &str, id: usize| match text {
        _ if unknown == Some(text) || model["unk_id"].as_u64() == Some(id as u64) => UNKNOWN,
        _ if scheme.model != "gpt2" && is_byte(text) => BYTE,
        _ => NORMAL,
    };
    match &model["vocab"] {
        Json::Object(vocabulary) => {
            let ranks = ranks(model);
            for (text, id) in vocabulary {
                let id = id.as_u64().unwrap_or(u64::MAX) as usize;
                // The earlier a merge, the better what it makes.
                let score = ranks.get(text.as_str()).map_or(NEVER, |&rank| -(rank as f32));
                put(id, text, kind(text, id), score);
            }
        }
        Json::Array(list) => {
            for (id, piece) in list.iter().enumerate() {
                let text = piece[0].as_str().unwrap_or_default();
                put(id, text, kind(text, id), piece[1].as_f64().unwrap_or_default() as f32);
            }
        }
        _ => {}
    }
    for token in file["added_tokens"].as_array().into_iter().flatten() {
        let (Some(id), Some(text)) = (token["id"].as_u64(), token["content"].as_str()) else { continue };
        let kind = match token["special"].as_bool() {
            _ if unknown == Some(text) => UNKNOWN,
            Some(true) => CONTROL,
            _ => USER_DEFINED,
        };
        put(id as usize, text, kind, 0.0);
    }
    pieces
}

/// `<0x41>`: a byte that no piece covers.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Both halves of each merge, whichever way the file writes them.
fn merges(model: &Json) -> impl Iterator<Item = (&str, &str)> {
    model["merges"].as_array().into_iter().flatten().filter_map(|merge| match merge {
        Json::String(both) => both.split_once(' '),
        both => Some((both[0].as_str()?, both[1].as_str()?)),
    })
}

/// The first merge that makes each piece.
fn ranks(model: &Json) -> std::collections::HashMap<String, usize> {
    let mut ranks = std::collections::HashMap::new();
    for (rank, (left, right)) in merges(model).enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank);
    }
    ranks
}

fn put_pieces(pieces: &Pieces, scheme: &Scheme, file: &Json, keys: &mut Keys) {
    keys.put("tokenizer.ggml.tokens", Item::Texts(&pieces.texts));
    keys.put("tokenizer.ggml.token_type", Item::Types(&pieces.kinds));
    if scheme.model == "gpt2" {
        // The two halves stand in one text: a space within them would cut it elsewhere.
        let whole = |half: &str| half.replace(' ', "\u{120}");
        let merges: Vec<String> =
            merges(&file["model"]).map(|(left, right)| format!("{} {}", whole(left), whole(right))).collect();
        keys.put("tokenizer.ggml.merges", Item::Texts(&merges));
    } else {
        keys.put("tokenizer.ggml.scores", Item::Numbers(&pieces.scores));
    }
}

fn put_specials(tokenizer: &Tokenizer, keys: &mut Keys) {
    for (key, name) in [
        ("bos_token_id", "bos_token"),
        ("eos_token_id", "eos_token"),
        ("unknown_token_id", "unk_token"),
        ("seperator_token_id", "sep_token"),
        ("padding_token_id", "pad_token"),
        ("mask_token_id", "mask_token"),
    ] {
        if let Some(id) = tokenizer.special_id(name) {
            keys.put(&format!("tokenizer.ggml.{key}"), Item::Count(id as usize));
        }
    }
    if let Some((before, behind)) = tokenizer.around() {
        let is = |tokens: &[u32], id: Option<u32>| id.is_some_and(|id| tokens == [id]);
        keys.put("tokenizer.ggml.add_bos_token", Item::Flag(is(before, tokenizer.bos_id())));
        keys.put("tokenizer.ggml.add_eos_token", Item::Flag(is(behind, tokenizer.eos_id())));
    }
    if let Some(template) = tokenizer.chat_template() {
        keys.put("tokenizer.chat_template", Item::Text(&without_marks(template.source())));
    }
}

/// `{% generation %}` says what is learnt; other programs know no such block.
fn without_marks(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}").map(|at| at + 2) else { break };
        let (before, tag) = (&rest[..open], &rest[open..open + length]);
        out.push_str(before);
        match tag.trim_matches(['{', '%', '}', '-', '+', ' ', '\t', '\n', '\r']) {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[open + length..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merges_are_read_in_both_spellings() {
        let old = json!({"merges": ["a b", "ab c"]});
        let new = json!({"merges": [["a", "b"], ["ab", "c"]]});
        assert!(merges(&old).eq(merges(&new)));
        assert_eq!(ranks(&old)["abc"], 1);
    }

    #[test]
    fn pieces_have_their_kinds_and_scores() {
        let file = json!({
            "model": {"type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "merges": [["a", "b"], ["b", "a"]],
                "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "a": 3, "b": 4, "ba": 5, "ab": 6}},
            "added_tokens": [{"id": 1, "content": "<s>", "special": true}, {"id": 7, "content": "x", "special": false}],
        });
        let scheme = Scheme { model: "llama", ..Scheme::default() };
        let Pieces { texts, kinds, scores } = pieces(&file, &scheme, 9);
        assert_eq!(texts, ["<unk>", "<s>", "<0x0A>", "a", "b", "ba", "ab", "x", "[PAD8]"]);
        assert_eq!(kinds, [UNKNOWN, CONTROL, BYTE, NORMAL, NORMAL, NORMAL, NORMAL, USER_DEFINED, UNUSED]);
        assert_eq!(scores[3..], [NEVER, NEVER, -1.0, 0.0, 0.0, NEVER]);
    }

    #[test]
    fn marks_of_answers_go_and_white_space_stays_as_it_was() {
        assert_eq!(
            without_marks("{%- generation -%} a {% endgeneration %}{{ generation }}{% if"),
            "{%- if true -%} a {% endif %}{{ generation }}{% if"
        );
    }
}
