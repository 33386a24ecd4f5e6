//! Files and tokenizers that the tests make for themselves.

use std::path::{Path, PathBuf};

use plimsoll_data::{DataError, Dataset, ExampleRef, NO_LOSS, Options, Rows, Tokenizer, quickstart};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder that goes when the test ends.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).expect("writes");
        path
    }

    /// One JSON value per line.
    pub fn jsonl(&self, rows: &[Value]) -> PathBuf {
        let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
        self.write("rows.jsonl", lines.join("\n"))
    }
}

/// Bytes as tokens, with `specials` added, and `config` as its tokenizer_config.json.
pub fn byte_tokenizer(specials: &[&str], config: &Value) -> Tokenizer {
    tokenizer_with_merges(specials, &[], config)
}

/// `merges` join two byte symbols each (a space is written `Ġ`).
pub fn tokenizer_with_merges(specials: &[&str], merges: &[(&str, &str)], config: &Value) -> Tokenizer {
    let [(_, text), _] = quickstart::tokenizer_files();
    let mut json: Value = serde_json::from_str(&text).expect("is JSON");
    let mut next = 260;
    for token in specials {
        let entry = json!({"id": next, "content": token, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true});
        json["added_tokens"].as_array_mut().expect("a list").push(entry);
        json["model"]["vocab"][*token] = json!(next);
        next += 1;
    }
    for (left, right) in merges {
        json["model"]["vocab"][format!("{left}{right}")] = json!(next);
        json["model"]["merges"].as_array_mut().expect("a list").push(json!([left, right]));
        next += 1;
    }
    let config = config.to_string();
    Tokenizer::from_bytes("test", json.to_string().as_bytes(), Some(&config)).expect("loads")
}

/// The tokenizer most tests use: bytes, `<|end|>` ends, no template.
pub fn plain_tokenizer() -> Tokenizer {
    byte_tokenizer(&[], &json!({"eos_token": "<|end|>"}))
}

pub fn build(rows: &[Value], tokenizer: &Tokenizer, options: &Options) -> Result<Dataset, DataError> {
    let folder = Folder::new();
    Dataset::from_files(&[folder.jsonl(rows)], tokenizer, options)
}

/// The whole text, and the pieces of it that are learnt, each run of targets as one piece.
pub fn shown(tokenizer: &Tokenizer, example: ExampleRef<'_>) -> (String, Vec<String>) {
    let decode = |ids: &[u32]| tokenizer.decode(ids, false).expect("decodes");
    let runs = example.targets.split(|&target| target == NO_LOSS);
    let learnt = runs
        .filter(|run| !run.is_empty())
        .map(|run| decode(&run.iter().map(|&t| t as u32).collect::<Vec<_>>()))
        .collect();
    (decode(example.tokens), learnt)
}

/// The message of the first error while reading.
pub fn read_error(path: &Path) -> String {
    let rows = Rows::open(&[path]).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    rows.expect_err("is an error").to_string()
}
