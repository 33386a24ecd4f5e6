//! By which of llama.cpp's rules a tokenizer cuts text. What it has no rule for is refused: the model would see other tokens
//! than those it was trained on.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value as Json;

/// How text becomes pieces.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Scheme {
    /// llama.cpp's name of the algorithm: `gpt2` merges bytes, `llama` merges characters, `t5` takes the likeliest pieces.
    pub model: &'static str,
    /// Its name of the pattern by which text is cut into words first.
    pub pre: &'static str,
    /// Whether a text has a space put before it.
    pub space_before: bool,
    /// Whether spaces in a row count as one.
    pub joins_spaces: bool,
    /// SentencePiece's table of characters to be replaced.
    pub charsmap: Option<Vec<u8>>,
    /// What is a little different there.
    pub notes: Vec<String>,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The patterns that llama.cpp has by name.
const PATTERNS: [(&str, &str); 4] = [(LLAMA3, "llama-bpe"), (QWEN2, "qwen2"), (GPT2, "gpt-2"), (TEKKEN, "tekken")];

pub(super) fn scheme(file: &Json) -> Result<Scheme, String> {
    let model = &file["model"];
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[key].as_str().is_some_and(|text| !text.is_empty()) {
            return Err(format!("llama.cpp has no `{key}`"));
        }
    }
    // Older files leave the type out where it is BPE.
    let kind = model["type"].as_str().or_else(|| model["merges"].is_array().then_some("BPE"));
    match kind {
        Some("BPE") if model["byte_fallback"] == true => characters(file),
        Some("BPE") => bytes(file),
        Some("Unigram") => likeliest(file),
        other => Err(format!("llama.cpp has no tokenizer of the kind {}", other.unwrap_or("null"))),
    }
}

/// The steps of a `Sequence`, or the one step there is.
fn steps<'a>(step: &'a Json, list: &str) -> Vec<&'a Json> {
    match step["type"].as_str() {
        None => Vec::new(),
        Some("Sequence") => step[list].as_array().into_iter().flatten().flat_map(|inner| steps(inner, list)).collect(),
        Some(_) => vec![step],
    }
}

fn kind(step: &Json) -> &str {
    step["type"].as_str().unwrap_or_default()
}

/// Byte-level pieces.
fn bytes(file: &Json) -> Result<Scheme, String> {
    let mut scheme = Scheme { model: "gpt2", ..Scheme::default() };
    for step in steps(&file["normalizer"], "normalizers") {
        note_normalizer(step, &mut scheme)?;
    }
    let mut cuts = steps(&file["pre_tokenizer"], "pretokenizers");
    let last = cuts
        .pop()
        .filter(|step| kind(step) == "ByteLevel")
        .ok_or("llama.cpp merges bytes or SentencePiece's characters")?;
    if last["add_prefix_space"] == true {
        return Err("llama.cpp puts no space before a text whose bytes are merged".to_owned());
    }
    let with_pattern = last["use_regex"] != false;
    let no_merges = file["model"]["merges"].as_array().is_none_or(Vec::is_empty);
    scheme.pre = match &cuts[..] {
        // Nothing is merged, wherever the cuts are.
        _ if no_merges => "gpt-2",
        [] if with_pattern => "gpt-2",
        [digits] if kind(digits) == "Digits" && digits["individual_digits"] == true && with_pattern => "smollm",
        [split] if kind(split) == "Split" && split["behavior"] == "Isolated" && !with_pattern => {
            let pattern = split["pattern"]["Regex"].as_str().unwrap_or_default();
            let known = PATTERNS.iter().find(|(known, _)| *known == pattern);
            known.ok_or_else(|| format!("llama.cpp has no name for the pattern {pattern:?} that cuts words"))?.1
        }
        _ => {
            let kinds: Vec<&str> = cuts.iter().map(|step| kind(step)).collect();
            return Err(format!("llama.cpp has no name for this way to cut words: {}", kinds.join(", ")));
        }
    };
    Ok(scheme)
}

/// SentencePiece's merges.
fn characters(file: &Json) -> Result<Scheme, String> {
    let mut scheme = Scheme { model: "llama", pre: "default", ..Scheme::default() };
    for step in steps(&file["normalizer"], "normalizers") {
        match kind(step) {
            "Prepend" if step["prepend"] == "▁" => scheme.space_before = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == "▁" => {}
            _ => note_normalizer(step, &mut scheme)?,
        }
    }
    for step in steps(&file["pre_tokenizer"], "pretokenizers") {
        match kind(step) {
            "Metaspace" => metaspace(step, &mut scheme),
            // Spaces are written as something else by then.
            "Split" if step["pattern"]["String"] == " " => {}
            other => return Err(format!("llama.cpp merges characters without the step {other}")),
        }
    }
    Ok(scheme)
}

/// SentencePiece's pieces by their likelihood.
fn likeliest(file: &Json) -> Result<Scheme, String> {
    let mut scheme = Scheme { model: "t5", pre: "default", ..Scheme::default() };
    for step in steps(&file["normalizer"], "normalizers") {
        match kind(step) {
            "Precompiled" => {
                let map = step["precompiled_charsmap"].as_str().unwrap_or_default();
                let map = BASE64_STANDARD.decode(map).map_err(|error| format!("precompiled_charsmap: {error}"))?;
                scheme.charsmap = Some(map);
            }
            "Strip" => scheme.joins_spaces = true,
            "Replace" if step["pattern"]["Regex"] == " {2,}" => scheme.joins_spaces = true,
            "Prepend" if step["prepend"] == "▁" => scheme.space_before = true,
            "Replace" if step["pattern"]["String"] == " " && step["content"] == "▁" => {}
            _ => note_normalizer(step, &mut scheme)?,
        }
    }
    for step in steps(&file["pre_tokenizer"], "pretokenizers") {
        match kind(step) {
            "Metaspace" => metaspace(step, &mut scheme),
            "WhitespaceSplit" => scheme.joins_spaces = true,
            // Pieces do not reach across line ends where they are a piece.
            "Split" if step["pattern"]["String"] == "\n" && step["behavior"] == "Isolated" => {}
            other => return Err(format!("llama.cpp finds the likeliest pieces without the step {other}")),
        }
    }
    Ok(scheme)
}

/// Newer files say when a space is put before a text, older ones whether.
fn metaspace(step: &Json, scheme: &mut Scheme) {
    let before = match step["prepend_scheme"].as_str() {
        Some(when) => when != "never",
        None => step["add_prefix_space"] != false,
    };
    if before {
        scheme.space_before = true;
        scheme.notes.push("llama.cpp puts a space also before texts that begin with one".to_owned());
    }
}

/// Forms of characters that llama.cpp leaves as they are; nearly all texts have them already.
fn note_normalizer(step: &Json, scheme: &mut Scheme) -> Result<(), String> {
    match kind(step) {
        form @ ("NFC" | "NFKC" | "Nmt") => {
            scheme.notes.push(format!("llama.cpp does not bring text into the form {form} before it cuts it"));
            Ok(())
        }
        other => Err(format!("llama.cpp does not change texts as {other} does")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn byte_level(cuts: &Json) -> Json {
        json!({"model": {"type": "BPE", "merges": [["a", "b"]]}, "normalizer": null, "pre_tokenizer": cuts})
    }

    #[test]
    fn patterns_have_the_names_llama_cpp_gives_them() {
        let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": regex});
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"});
        let list = |first: Json, last: Json| json!({"type": "Sequence", "pretokenizers": [first, last]});
        let digits = json!({"type": "Digits", "individual_digits": true});
        let check = |cuts: Json, expected: &str| {
            assert_eq!(scheme(&byte_level(&cuts)).map(|scheme| scheme.pre), Ok(expected), "{cuts}");
        };
        check(bytes(true), "gpt-2");
        check(list(digits, bytes(true)), "smollm");
        for (pattern, name) in PATTERNS {
            check(list(split(pattern), bytes(false)), name);
        }
        let refused = |cuts: Json, part: &str| {
            let reason = scheme(&byte_level(&cuts)).expect_err("refused");
            assert!(reason.contains(part), "{reason}");
        };
        refused(list(split("[a-z]+"), bytes(false)), "[a-z]+");
        refused(bytes(false), "no name for this way");
        refused(json!({"type": "Whitespace"}), "merges bytes");
        let mut prefixed = bytes(true);
        prefixed["add_prefix_space"] = json!(true);
        refused(prefixed, "no space before");
    }

    #[test]
    fn sentencepiece_s_two_kinds_and_their_spaces() {
        let metaspace = |when: &str| json!({"type": "Metaspace", "prepend_scheme": when});
        let of = |kind: &str, normalizer: Json, cuts: Json| {
            let model = json!({"type": kind, "byte_fallback": true, "merges": [], "vocab": []});
            scheme(&json!({"model": model, "normalizer": normalizer, "pre_tokenizer": cuts}))
        };
        let llama = of("BPE", json!({"type": "Prepend", "prepend": "▁"}), Json::Null).expect("known");
        assert_eq!((llama.model, llama.space_before), ("llama", true));
        let gemma = of("BPE", Json::Null, json!({"type": "Split", "pattern": {"String": " "}})).expect("known");
        assert_eq!((gemma.model, gemma.space_before), ("llama", false));
        let map = json!({"type": "Precompiled", "precompiled_charsmap": "AAEC"});
        let t5 = of(
            "Unigram",
            map,
            json!({"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"}, metaspace("always")]}),
        )
        .expect("known");
        assert_eq!((t5.model, t5.space_before, t5.joins_spaces), ("t5", true, true));
        assert_eq!(t5.charsmap, Some(vec![0, 1, 2]));
        let own = of("Unigram", json!({"type": "NFKC"}), metaspace("never")).expect("known");
        assert!(!own.space_before && own.notes.len() == 1, "{own:?}");
        assert!(of("WordPiece", Json::Null, Json::Null).expect_err("refused").contains("WordPiece"));
        assert!(of("Unigram", json!({"type": "Lowercase"}), Json::Null).expect_err("refused").contains("Lowercase"));
    }
}
