//! Tokenizers in the file.

use std::path::Path;

use plimsoll_train::{TrainError, export_gguf};
use tempfile::TempDir;

use crate::reader::{Gguf, Value, read};
use crate::{fixture, model, parity};

/// A model with that many rows, beside one of the fixtures' tokenizers.
fn with_tokenizer(rows: usize, files: &Path) -> Result<(Gguf, Vec<String>), TrainError> {
    let here = TempDir::new().expect("a folder");
    let out = here.path().join("model.gguf");
    let mut model = model(&parity("qwen2"));
    // Fewer tokens than the tokenizer has are refused before any weight is read, more are not in the files.
    if rows != model.config.vocab_size {
        model.config.vocab_size = rows;
    }
    let report = export_gguf(&model, None, files, None, &out)?;
    Ok((read(&out), report.notes))
}

/// A tokenizer cut down to the 131 rows that the models of the fixtures have.
fn small(kind: &str, template: &str) -> TempDir {
    let here = TempDir::new().expect("a folder");
    let text = std::fs::read(fixture("chat").join(kind).join("tokenizer.json")).expect("readable");
    let mut file: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let model = &mut file["model"];
    if let Some(list) = model["vocab"].as_array_mut() {
        list.truncate(120);
    } else {
        let few = |id: &serde_json::Value| id.as_u64().is_some_and(|id| id < 120);
        let kept: serde_json::Map<_, _> =
            model["vocab"].as_object().expect("pieces").clone().into_iter().filter(|(_, id)| few(id)).collect();
        let known = |half: &serde_json::Value| kept.contains_key(half.as_str().expect("a piece"));
        let merges = model["merges"].as_array_mut().expect("merges");
        merges.retain(|merge| {
            let whole = format!("{}{}", merge[0].as_str().expect("a half"), merge[1].as_str().expect("a half"));
            known(&merge[0]) && known(&merge[1]) && kept.contains_key(&whole)
        });
        model["vocab"] = serde_json::Value::Object(kept);
    }
    std::fs::write(here.path().join("tokenizer.json"), file.to_string()).expect("written");
    let config =
        serde_json::json!({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true, "chat_template": template});
    std::fs::write(here.path().join("tokenizer_config.json"), config.to_string()).expect("written");
    here
}

const TEMPLATE: &str = "{% for m in messages %}{%- generation -%}{{ m.content }}{% endgeneration %}{% endfor %}";

#[test]
fn every_kind_has_its_pieces_and_rules() {
    for (kind, name, pre) in [("bytes", "gpt2", "gpt-2"), ("pieces", "llama", "default"), ("unigram", "t5", "default")]
    {
        let files = small(kind, TEMPLATE);
        let (gguf, _) = with_tokenizer(131, files.path()).expect("exported");
        assert_eq!((gguf.text("tokenizer.ggml.model"), gguf.text("tokenizer.ggml.pre")), (name, pre));
        let tokens = gguf.list("tokenizer.ggml.tokens");
        assert_eq!((tokens.len(), gguf.list("tokenizer.ggml.token_type").len()), (131, 131), "{kind}");
        assert_eq!(tokens[130], Value::Text("[PAD130]".to_owned()));
        let of = |key: &str| gguf.count(&format!("tokenizer.ggml.{key}_token_id")) as usize;
        assert_eq!(tokens[of("bos")], Value::Text("<s>".to_owned()));
        assert_eq!(tokens[of("eos")], Value::Text("</s>".to_owned()));
        assert_eq!(gguf.keys["tokenizer.ggml.add_bos_token"], Value::Flag(true));
        assert_eq!(gguf.keys["tokenizer.ggml.add_eos_token"], Value::Flag(false));
        assert_eq!(
            gguf.text("tokenizer.chat_template"),
            "{% for m in messages %}{%- if true -%}{{ m.content }}{% endif %}{% endfor %}"
        );
        // Control, whatever else the file calls it.
        assert_eq!(gguf.list("tokenizer.ggml.token_type")[of("bos")], Value::Count(3));
        match kind {
            "bytes" => assert!(
                !gguf.keys.contains_key("tokenizer.ggml.scores") && gguf.keys.contains_key("tokenizer.ggml.merges")
            ),
            _ => assert_eq!(gguf.keys["tokenizer.ggml.add_space_prefix"], Value::Flag(true)),
        }
    }
}

#[test]
fn tokenizers_that_llama_cpp_has_no_rule_for_are_refused() {
    let refused = |files: &Path, part: &str| {
        let Err(error) = with_tokenizer(131, files) else { panic!("a tokenizer without a rule was written") };
        let error = error.to_string();
        assert!(error.contains(part), "{error}");
    };
    refused(&fixture("chat/bytes"), "the tokenizer has 500 tokens, the model's vocabulary only 131");
    let files = small("bytes", TEMPLATE);
    let path = files.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&path).expect("readable");
    let mut file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    file["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "[a-z]+|."}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]});
    file["model"]["merges"] = serde_json::json!([["\u{120}", "\u{120}"]]);
    file["model"]["vocab"]["\u{120}\u{120}"] = 119.into();
    file["model"]["vocab"]["\u{120}"] = 118.into();
    std::fs::write(&path, file.to_string()).expect("written");
    refused(files.path(), "no name for the pattern \"[a-z]+|.\"");
}
