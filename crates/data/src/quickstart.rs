//! The quickstart's dataset and tokenizer, made by code: a ship's clerk counting cargo.
//!
//! Two-digit sums, differences and comparisons in a few phrasings. Answers show the way ("50+11=61"): a small model learns
//! the digit sums in the first thousand updates, where bare results take it many times as long.
//! A pair of numbers is either for training or held out, in every phrasing and in both orders, whatever the seed.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::error::{DataError, Place};
use crate::order::{SplitMix64, mix};
use crate::read::Row;
use crate::tokenize::Tokenizer;

/// Enough that a quickstart sees each row about once.
const TRAIN_ROWS: usize = 40_000;
const EVAL_ROWS: usize = 500;
/// No question with its answer has more tokens.
pub const MAX_LENGTH: usize = 48;

/// `{a}` and `{b}` are the numbers, 10 to 99.
const LOAD: [&str; 3] = ["{a} crates and {b} more?", "{a} barrels, {b} come aboard?", "{a} tons, then {b} on top?"];
const UNLOAD: [&str; 3] = ["{a} crates less {b}?", "{a} barrels, {b} go ashore?", "{a} tons, {b} are sold?"];
const SAIL: [&str; 2] = ["Draught {a}, line {b}: sail?", "Line {b}, draught {a}: sail?"];

/// Special tokens first, then the 256 bytes: 260 ids.
const PAD: &str = "<|pad|>";
const USER: &str = "<|user|>";
const ANSWER: &str = "<|answer|>";
const END: &str = "<|end|>";
const SPECIALS: [&str; 4] = [PAD, USER, ANSWER, END];

const CHAT_TEMPLATE: &str = "{% for message in messages %}\
    {{ ('<|answer|>' if message.role == 'assistant' else '<|user|>') + message.content }}\
    {% if message.role == 'assistant' %}{{ '<|end|>' }}{% endif %}\
    {% endfor %}\
    {% if add_generation_prompt %}{{ '<|answer|>' }}{% endif %}";

/// Rows to train on; the seed picks numbers and phrasings.
pub fn train_rows(seed: u64) -> Vec<Row> {
    rows("quickstart/train", seed, TRAIN_ROWS, false)
}

/// Rows over pairs of numbers that no training row has.
pub fn eval_rows(seed: u64) -> Vec<Row> {
    rows("quickstart/eval", seed, EVAL_ROWS, true)
}

/// The tokenizer's two files as a Hugging Face folder has them: `tokenizer.json` and `tokenizer_config.json`.
pub fn tokenizer_files() -> [(&'static str, String); 2] {
    [("tokenizer.json", format!("{:#}", tokenizer_json())), ("tokenizer_config.json", format!("{:#}", config_json()))]
}

pub fn tokenizer() -> Result<Tokenizer, DataError> {
    let [(_, tokenizer), (_, config)] = tokenizer_files();
    Tokenizer::from_bytes("the quickstart's tokenizer", tokenizer.as_bytes(), Some(&config))
}

/// One pair of ten is held out. Not a matter of the seed: two runs with different seeds can be compared.
fn held_out(a: u64, b: u64) -> bool {
    mix(a.min(b) * 100 + a.max(b)).is_multiple_of(10)
}

fn rows(name: &str, seed: u64, count: usize, held: bool) -> Vec<Row> {
    let file: Arc<Path> = Arc::from(Path::new(name));
    let mut numbers = SplitMix64::new(seed ^ u64::from(held));
    let mut rows = Vec::with_capacity(count);
    while rows.len() < count {
        let (a, b) = (10 + numbers.below(90), 10 + numbers.below(90));
        let (kind, phrasing) = (numbers.below(5), numbers.next());
        if held_out(a, b) != held {
            continue;
        }
        let (prompt, response) = question(kind, phrasing, a, b);
        let at = Place { file: file.clone(), row: rows.len() as u64 + 1 };
        let columns = Map::from_iter([
            ("prompt".to_owned(), Value::String(prompt)),
            ("response".to_owned(), Value::String(response)),
        ]);
        rows.push(Row { at, columns });
    }
    rows
}

/// Two of five load, two unload, one asks whether she may sail: the last is learnt first.
fn question(kind: u64, phrasing: u64, a: u64, b: u64) -> (String, String) {
    let (phrasings, a, b, response): (&[&str], _, _, _) = match kind {
        0 | 1 => (&LOAD, a, b, sum(a, b)),
        2 | 3 => {
            let (a, b) = (a.max(b), a.min(b));
            (&UNLOAD, a, b, difference(a, b))
        }
        // Up to the line, never over it.
        _ => (&SAIL, a, b, if a <= b { "yes" } else { "no" }.to_owned()),
    };
    let phrasing = phrasings[(phrasing % phrasings.len() as u64) as usize];
    let prompt = phrasing.replace("{a}", &a.to_string()).replace("{b}", &b.to_string());
    (prompt, response)
}

/// Tens, ones, result: 34 and 27 are "50+11=61".
fn sum(a: u64, b: u64) -> String {
    let (tens, ones) = ((a / 10 + b / 10) * 10, a % 10 + b % 10);
    format!("{tens}+{ones}={}", a + b)
}

/// 61 less 27 is "40-6=34"; 69 less 27 is "40+2=42".
fn difference(a: u64, b: u64) -> String {
    let tens = (a / 10 - b / 10) * 10;
    let (sign, ones) = if a % 10 >= b % 10 { ('+', a % 10 - b % 10) } else { ('-', b % 10 - a % 10) };
    format!("{tens}{sign}{ones}={}", a - b)
}

/// A byte-level tokenizer without merges: any text can be written, each byte is a token, so each digit is one.
fn tokenizer_json() -> Value {
    let mut vocab = Map::new();
    for (id, token) in SPECIALS.into_iter().enumerate() {
        vocab.insert(token.to_owned(), json!(id));
    }
    for byte in 0..=u8::MAX {
        vocab.insert(byte_symbol(byte).to_string(), json!(vocab.len()));
    }
    let added: Vec<Value> = SPECIALS
        .into_iter()
        .enumerate()
        .map(|(id, token)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []},
    })
}

fn config_json() -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD,
        "model_max_length": 1024, "clean_up_tokenization_spaces": false, "chat_template": CHAT_TEMPLATE,
    })
}

/// The letter that stands for a byte in byte-level vocabularies: itself where it is visible, else one from U+0100 on,
/// counted in the order of the bytes that need one.
fn byte_symbol(byte: u8) -> char {
    let visible = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&b| !visible(b)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Content, Dataset, Options};
    use std::collections::HashSet;

    /// The numbers in a question, smaller first.
    fn pair(row: &Row) -> (u64, u64) {
        let prompt = row.columns["prompt"].as_str().expect("is text");
        let mut numbers = prompt.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse::<u64>().ok());
        let (a, b) = (numbers.next().expect("a"), numbers.next().expect("b"));
        (a.min(b), a.max(b))
    }

    #[test]
    fn held_out_pairs_never_occur_in_training_whatever_the_seeds() {
        let train: HashSet<_> = train_rows(1).iter().map(pair).collect();
        let eval: HashSet<_> = eval_rows(2).iter().map(pair).collect();
        assert!(train.is_disjoint(&eval));
        // And training covers nearly all that is not held out (about 0.9 × 4095 pairs).
        assert!(train.len() > 3500, "{}", train.len());
        assert!(eval.len() > 200, "{}", eval.len());
    }

    #[test]
    fn answers_are_right() {
        assert_eq!(sum(34, 27), "50+11=61");
        assert_eq!(sum(99, 99), "180+18=198");
        assert_eq!(difference(61, 27), "40-6=34");
        assert_eq!(difference(69, 27), "40+2=42");
        assert_eq!(difference(61, 57), "10-6=4");
        assert_eq!(question(4, 0, 47, 47).1, "yes");
        assert_eq!(question(4, 0, 48, 47).1, "no");
        assert_eq!(question(4, 1, 48, 47).0, "Line 47, draught 48: sail?");
        assert_eq!(question(3, 2, 20, 47).0, "47 tons, 20 are sold?");
    }

    #[test]
    fn the_loss_lies_on_the_answer_and_its_end() {
        let tokenizer = tokenizer().expect("loads");
        assert_eq!(tokenizer.vocab_size(), 260);
        let rows = eval_rows(3);
        let options = Options::new(Content::Answers, MAX_LENGTH);
        let source = rows.iter().cloned().map(Ok);
        let data = Dataset::from_rows(source, "quickstart", &tokenizer, &options).expect("builds");
        let examples = data.first(rows.len()).expect("readable");
        for (row, example) in rows.iter().zip(&examples) {
            let (prompt, response) = (&row.columns["prompt"], &row.columns["response"]);
            let (prompt, response) = (prompt.as_str().unwrap(), response.as_str().unwrap());
            let text = tokenizer.decode(&example.tokens, false).expect("decodes");
            assert_eq!(text, format!("{USER}{prompt}{ANSWER}{response}{END}"));
            let learnt: Vec<u32> = example.targets.iter().filter_map(|&target| u32::try_from(target).ok()).collect();
            let learnt = tokenizer.decode(&learnt, false).expect("decodes");
            assert_eq!(learnt, format!("{response}{END}"));
        }
    }

    #[test]
    fn any_text_survives_the_tokenizer() {
        let tokenizer = tokenizer().expect("loads");
        for text in ["42 crates", "Löschung früh\n\t", "船が出る 🚢", ""] {
            let ids = tokenizer.encode(text, true).expect("encodes");
            assert_eq!(ids.len(), text.len());
            assert_eq!(tokenizer.decode(&ids, true).expect("decodes"), text);
        }
    }

    #[test]
    fn even_the_longest_question_fits() {
        let tokenizer = tokenizer().expect("loads");
        let rows = train_rows(5).into_iter().map(Ok);
        let options = Options::new(Content::Answers, MAX_LENGTH);
        let data = Dataset::from_rows(rows, "quickstart", &tokenizer, &options).expect("builds");
        assert_eq!(data.sequences(), Some(TRAIN_ROWS as u64));
        assert!(data.longest() <= Some(MAX_LENGTH as u64), "{:?}", data.longest());
    }
}
