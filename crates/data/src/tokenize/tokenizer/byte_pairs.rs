//! Byte-level BPE on a path of its own: the same ids as the `tokenizers` crate several times as fast, for tokenizers made
//! of known parts. Anything else takes the crate's path.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::{AHashMap, RandomState};
use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::Value;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::composed::composes_at_most;
use super::merge::Merges;
use super::split::Pattern;

/// Texts on which both paths must agree before this one is taken.
const PROBES: [&str; 6] = [
    "The quick brown fox, it's 1234567 o'clock!!  \n\n  def f(x):\n\treturn x_1 + \"ü船🙂\"\r\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "====----____    \u{a0}\u{3000}\u{200b}½٣ẞſ'S'LL",
    " ",
    "",
    "https://example.org/?q=a%20b&c=d#e <|endoftext|></s>[INST] <s>x",
];

pub(super) struct BytePairs {
    pattern: Pattern,
    merges: Merges,
    /// Tokens that are found in the text before anything else.
    added: Option<(AhoCorasick, Vec<u32>)>,
    /// Where a whole word that is a token stays one, whatever the merges say.
    whole: Option<AHashMap<Vec<u8>, u32>>,
    hash: RandomState,
    identity: u64,
}

impl BytePairs {
    /// `None` if some part of the pipeline is not known here, or the two paths do not agree.
    pub(super) fn of(inner: &tokenizers::Tokenizer, file: &Value) -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let model = &file["model"];
        let plain =
            |name: &str| model[name].is_null() || model[name] == false || model[name] == "" || model[name] == 0.0;
        let is_plain = ["dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"];
        if model["type"] != "BPE" || !composes_at_most(file) || !is_plain.iter().all(|name| plain(name)) {
            return None;
        }
        let byte_of = byte_alphabet(inner)?;
        let fast = Self {
            pattern: pattern_of(&file["pre_tokenizer"])?,
            merges: Merges::new(pairs_of(model, inner)?, byte_of.0),
            added: added_tokens(inner)?,
            whole: (model["ignore_merges"] == true).then(|| whole_words(inner, &byte_of.1)),
            hash: RandomState::with_seeds(1, 2, 3, 4),
            identity: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        let agrees =
            |text: &str| inner.encode_fast(text, false).is_ok_and(|other| other.get_ids() == fast.encode(text));
        PROBES.iter().all(|text| agrees(text)).then_some(fast)
    }

    /// Of a text that the tokenizer does not rewrite first.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 8);
        CACHE.with_borrow_mut(|cache| {
            cache.belong_to(self.identity);
            let Some((finder, ids)) = &self.added else {
                return self.encode_piece(text, cache, &mut out);
            };
            let mut start = 0;
            for found in finder.find_iter(text) {
                self.encode_piece(&text[start..found.start()], cache, &mut out);
                out.push(ids[found.pattern().as_usize()]);
                start = found.end();
            }
            self.encode_piece(&text[start..], cache, &mut out);
        });
        out
    }

    fn encode_piece(&self, text: &str, cache: &mut Cache, out: &mut Vec<u32>) {
        self.pattern.split(text, |word| {
            let word = word.as_bytes();
            let slot = (word.len() <= WORD_BYTES_MAX).then(|| self.hash.hash_one(word));
            if let Some(found) = slot.and_then(|hash| cache.get(hash, word)) {
                return out.extend_from_slice(found);
            }
            let start = out.len();
            match self.whole.as_ref().and_then(|whole| whole.get(word)) {
                Some(token) => out.push(*token),
                None => self.merges.join(word, out),
            }
            if let Some(hash) = slot {
                cache.put(hash, word, &out[start..]);
            }
        });
    }
}

const WORD_BYTES_MAX: usize = 23;
const WORD_TOKENS_MAX: usize = 8;
const SLOTS: usize = 1 << 15;

/// The tokens of words seen lately, one per slot: 2 MiB for each thread, whatever the text.
struct Cache {
    identity: u64,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy)]
struct Slot {
    word: [u8; WORD_BYTES_MAX],
    word_bytes: u8,
    tokens: [u32; WORD_TOKENS_MAX],
    count: u8,
}

const EMPTY: Slot = Slot { word: [0; WORD_BYTES_MAX], word_bytes: 0, tokens: [0; WORD_TOKENS_MAX], count: 0 };

thread_local! {
    static CACHE: RefCell<Cache> = const { RefCell::new(Cache { identity: 0, slots: Vec::new() }) };
}

impl Cache {
    /// Another tokenizer's words mean nothing.
    fn belong_to(&mut self, identity: u64) {
        if self.identity != identity {
            self.identity = identity;
            self.slots.clear();
            self.slots.resize(SLOTS, EMPTY);
        }
    }

    fn get(&self, hash: u64, word: &[u8]) -> Option<&[u32]> {
        let slot = &self.slots[hash as usize % SLOTS];
        let is_it = slot.count > 0 && slot.word[..usize::from(slot.word_bytes)] == *word;
        is_it.then(|| &slot.tokens[..usize::from(slot.count)])
    }

    fn put(&mut self, hash: u64, word: &[u8], tokens: &[u32]) {
        if tokens.len() > WORD_TOKENS_MAX {
            return;
        }
        let slot = &mut self.slots[hash as usize % SLOTS];
        slot.word[..word.len()].copy_from_slice(word);
        slot.word_bytes = word.len() as u8;
        slot.tokens[..tokens.len()].copy_from_slice(tokens);
        slot.count = tokens.len() as u8;
    }
}

/// The step itself, or a split by a known pattern and then the step without one.
fn pattern_of(step: &Value) -> Option<Pattern> {
    let bare = |step: &Value, regex: bool| {
        let uses = step["use_regex"].as_bool().unwrap_or(true);
        step["type"] == "ByteLevel" && step["add_prefix_space"] == false && uses == regex
    };
    if bare(step, true) {
        return Some(Pattern::Gpt2);
    }
    match step["pretokenizers"].as_array()?.as_slice() {
        [split, last] if split["type"] == "Split" && bare(last, false) => {
            let isolates = split["behavior"] == "Isolated" && split["invert"] == false;
            Pattern::of_regex(split["pattern"]["Regex"].as_str()?).filter(|_| isolates)
        }
        _ => None,
    }
}

/// The token of each byte, and the byte of each letter of the alphabet.
fn byte_alphabet(inner: &tokenizers::Tokenizer) -> Option<([u32; 256], AHashMap<char, u8>)> {
    // The alphabet's order: printable bytes stand for themselves, the others for letters from U+0100 on.
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut letters = AHashMap::new();
    let mut next = 0x100;
    let mut ids = [0; 256];
    for byte in 0..=255u8 {
        let letter = if printable(byte) { char::from(byte) } else { char::from_u32(next)? };
        next += u32::from(!printable(byte));
        letters.insert(letter, byte);
        ids[usize::from(byte)] = inner.token_to_id(letter.encode_utf8(&mut [0; 4]))?;
    }
    ByteLevel::alphabet().iter().all(|letter| letters.contains_key(letter)).then_some((ids, letters))
}

fn pairs_of(model: &Value, inner: &tokenizers::Tokenizer) -> Option<AHashMap<(u32, u32), (u32, u32)>> {
    let vocab = model["vocab"].as_object()?;
    let id = |token: &str| u32::try_from(vocab.get(token)?.as_u64()?).ok();
    let merges = model["merges"].as_array()?;
    let mut pairs = AHashMap::with_capacity(merges.len());
    for (rank, merge) in (0u32..).zip(merges) {
        let (left, right) = match merge {
            Value::String(text) => text.split_once(' ')?,
            other => (other[0].as_str()?, other[1].as_str()?),
        };
        let joined = id(&format!("{left}{right}"))?;
        pairs.insert((id(left)?, id(right)?), (rank, joined));
    }
    (inner.get_vocab_size(false) > 0).then_some(pairs)
}

fn whole_words(inner: &tokenizers::Tokenizer, byte_of: &AHashMap<char, u8>) -> AHashMap<Vec<u8>, u32> {
    let vocab = inner.get_vocab(false).into_iter();
    let bytes = |token: &str| token.chars().map(|letter| byte_of.get(&letter).copied()).collect::<Option<Vec<u8>>>();
    vocab.filter_map(|(token, id)| Some((bytes(&token)?, id))).collect()
}

/// `None` if tokens are to be found in ways other than as they stand.
fn added_tokens(inner: &tokenizers::Tokenizer) -> Option<Option<(AhoCorasick, Vec<u32>)>> {
    let tokens = inner.get_added_tokens_decoder();
    if tokens.is_empty() {
        return Some(None);
    }
    let simple = |token: &tokenizers::AddedToken| !token.lstrip && !token.rstrip && !token.single_word;
    let normalized = tokens.values().filter(|token| token.normalized).count();
    // Those of one kind are looked for before those of the other.
    if !tokens.values().all(simple) || (normalized != 0 && normalized != tokens.len()) {
        return None;
    }
    let mut list: Vec<(u32, String)> = tokens.iter().map(|(id, token)| (*id, token.content.clone())).collect();
    list.sort_unstable();
    let finder = AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .build(list.iter().map(|(_, content)| content))
        .ok()?;
    Some(Some((finder, list.into_iter().map(|(id, _)| id).collect())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::sync::LazyLock;

    const FILE: &str = include_str!("../../../../../fixtures/chat/bytes/tokenizer.json");
    const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

    fn both(change: impl FnOnce(&mut Value)) -> (tokenizers::Tokenizer, Option<BytePairs>) {
        let mut file: Value = serde_json::from_str(FILE).expect("JSON");
        change(&mut file);
        let inner = tokenizers::Tokenizer::from_bytes(file.to_string()).expect("loads");
        let fast = BytePairs::of(&inner, &file);
        (inner, fast)
    }

    static KINDS: LazyLock<Vec<(tokenizers::Tokenizer, BytePairs)>> = LazyLock::new(kinds);

    fn kinds() -> Vec<(tokenizers::Tokenizer, BytePairs)> {
        let split = json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]});
        [
            both(|_| {}),
            both(|file| file["model"]["ignore_merges"] = json!(true)),
            both(|file| file["pre_tokenizer"] = split),
        ]
        .map(|(inner, fast)| (inner, fast.expect("known parts")))
        .into()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn the_ids_are_those_of_the_crate(text in "(the ship|[a-z]{0,9}|e{0,90}|[ \n]{0,3}|<\\|im_end\\|>|</s>|<\\|im|\\PC){0,20}") {
            for (inner, fast) in KINDS.iter() {
                let expected = inner.encode_fast(text.as_str(), false).expect("encodes");
                prop_assert_eq!(fast.encode(&text), expected.get_ids(), "{:?}", text);
            }
        }
    }

    #[test]
    fn long_words_are_joined_like_short_ones() {
        for (inner, fast) in KINDS.iter() {
            for word in ["assistant", "ee", "memory", "x9"] {
                let text = word.repeat(5000);
                let expected = inner.encode_fast(text.as_str(), false).expect("encodes");
                assert_eq!(fast.encode(&text), expected.get_ids(), "{word}");
            }
        }
    }

    /// Texts that composing would change are not handed to this path.
    #[test]
    fn composing_changes_nothing_in_composed_texts() {
        let (inner, fast) = both(|file| file["normalizer"] = json!({"type": "NFC"}));
        let fast = fast.expect("known");
        for text in ["the ship's memory", "\u{fc}ber 船 ½ ẞ 🙂 <|im_end|>", "caf\u{e9}\r\n\tx"] {
            let expected = inner.encode_fast(text, false).expect("encodes");
            assert_eq!(fast.encode(text), expected.get_ids(), "{text}");
        }
    }

    #[test]
    fn unknown_parts_are_left_to_the_crate() {
        let unknown = |change: fn(&mut Value)| assert!(both(change).1.is_none());
        unknown(|file| file["normalizer"] = json!({"type": "NFKC"}));
        unknown(|file| file["pre_tokenizer"]["add_prefix_space"] = json!(true));
        unknown(|file| file["added_tokens"][3]["lstrip"] = json!(true));
        unknown(|file| file["added_tokens"][3]["normalized"] = json!(true));
        unknown(|file| file["model"]["unk_token"] = json!("<unk>"));
        unknown(|file| file["pre_tokenizer"] = json!({"type": "Whitespace"}));
    }
}
