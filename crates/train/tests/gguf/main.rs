//! Files for llama.cpp, read back by a reader of the test's own. `fixtures/check_gguf.py` has llama.cpp itself compute with
//! such files.

mod memory;
mod reader;
mod tokenizers;

use std::path::{Path, PathBuf};

use plimsoll_train::{AdapterFolder, GgufReport, GgufType, Model, TrainError, export_gguf};
use reader::{Gguf, Value, read};
use safetensors::SafeTensors;
use tempfile::TempDir;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn parity(family: &str) -> PathBuf {
    fixture("parity").join(family).join("model")
}

fn model(folder: &Path) -> Model {
    Model::find(folder.to_str().expect("UTF-8")).expect("a model")
}

fn export(folder: &Path, stored: Option<GgufType>, out: &Path) -> Result<GgufReport, TrainError> {
    export_gguf(&model(folder), None, folder, stored, out)
}

fn exported(folder: &Path, stored: Option<GgufType>) -> (Gguf, GgufReport) {
    let here = TempDir::new().expect("a folder");
    let out = here.path().join("model.gguf");
    let report = export(folder, stored, &out).expect("exported");
    assert_eq!(report.bytes, out.metadata().expect("there").len());
    let gguf = read(&out);
    assert_eq!(report.tensors, gguf.tensors.len());
    (gguf, report)
}

/// A tensor of a folder with one file, in float32.
fn stored(folder: &Path, name: &str) -> Vec<f32> {
    let names = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let weights = names.filter(|path| path.extension().is_some_and(|suffix| suffix == "safetensors"));
    for path in weights {
        let bytes = std::fs::read(path).expect("readable");
        if let Ok(tensor) = SafeTensors::deserialize(&bytes).expect("safetensors").tensor(name) {
            assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
            return tensor.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        }
    }
    panic!("no {name}")
}

/// A family's model with other values in its configuration.
fn changed(family: &str, keys: &[(&str, serde_json::Value)]) -> TempDir {
    let here = TempDir::new().expect("a folder");
    for entry in std::fs::read_dir(parity(family)).expect("a folder") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, here.path().join(path.file_name().expect("a name"))).expect("copied");
    }
    let path = here.path().join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    for (key, value) in keys {
        config[*key] = value.clone();
    }
    std::fs::write(path, config.to_string()).expect("written");
    here
}

#[test]
fn llama_has_its_sizes_and_heads_in_pairs() {
    let folder = parity("llama");
    let (gguf, report) = exported(&folder, None);
    assert_eq!(report.stored, GgufType::F32, "as the files have it");
    assert_eq!(gguf.text("general.architecture"), "llama");
    for (key, expected) in [
        ("general.file_type", 0),
        ("llama.block_count", 2),
        ("llama.embedding_length", 32),
        ("llama.feed_forward_length", 64),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("llama.rope.dimension_count", 8),
        ("llama.context_length", 1024),
        ("llama.vocab_size", 131),
    ] {
        assert_eq!(gguf.count(key), expected, "{key}");
    }
    assert_eq!(gguf.keys["llama.rope.freq_base"], Value::Number(10_000.0));
    assert_eq!(gguf.text("tokenizer.ggml.model"), "no_vocab");
    let tensor = |name: &str| gguf.tensors[name].numbers();
    assert_eq!(tensor("output.weight"), stored(&folder, "lm_head.weight"));
    assert_eq!(tensor("blk.1.ffn_down.weight"), stored(&folder, "model.layers.1.mlp.down_proj.weight"));
    assert_eq!(gguf.tensors["blk.1.ffn_down.weight"].dims, [64, 32]);
    // Rows 0 and 4 of a head of eight are the first pair, 1 and 5 the second.
    let (paired, halves) = (tensor("blk.0.attn_k.weight"), stored(&folder, "model.layers.0.self_attn.k_proj.weight"));
    let order = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15];
    for (row, from) in order.into_iter().enumerate() {
        assert_eq!(paired[row * 32..][..32], halves[from * 32..][..32], "row {row}");
    }
    // Llama 3's scaling leaves the fastest frequency and divides the slowest by its whole factor.
    let divisors = tensor("rope_freqs.weight");
    assert_eq!((divisors.len(), divisors[0], divisors[3]), (4, 1.0, 8.0));
}

#[test]
fn qwen_keeps_halves_biases_and_norms_of_heads() {
    let (two, three) = (parity("qwen2"), parity("qwen3"));
    let (gguf, _) = exported(&two, None);
    assert!(!gguf.tensors.contains_key("output.weight"), "tied");
    for (name, from) in [("attn_q.weight", "q_proj.weight"), ("attn_k.bias", "k_proj.bias")] {
        let from = stored(&two, &format!("model.layers.1.self_attn.{from}"));
        assert_eq!(gguf.tensors[&format!("blk.1.{name}")].numbers(), from, "{name}");
    }
    let (gguf, _) = exported(&three, None);
    assert_eq!(gguf.text("general.architecture"), "qwen3");
    assert_eq!(gguf.count("qwen3.attention.key_length"), 16);
    let norm = stored(&three, "model.layers.0.self_attn.q_norm.weight");
    assert_eq!(gguf.tensors["blk.0.attn_q_norm.weight"].numbers(), norm);
}

#[test]
fn gemma_s_norms_are_whole_factors() {
    let folder = changed("gemma2", &[("query_pre_attn_scalar", 16.into())]);
    let (gguf, report) = exported(folder.path(), None);
    let factors: Vec<f32> =
        stored(folder.path(), "model.layers.1.post_attention_layernorm.weight").iter().map(|x| x + 1.0).collect();
    assert_eq!(gguf.tensors["blk.1.post_attention_norm.weight"].numbers(), factors);
    for name in ["attn_norm", "ffn_norm", "post_ffw_norm"] {
        assert!(gguf.tensors.contains_key(&format!("blk.1.{name}.weight")), "{name}");
    }
    assert_eq!(gguf.count("gemma2.attention.sliding_window"), 7);
    assert_eq!(gguf.keys["gemma2.attn_logit_softcapping"], Value::Number(2.0));
    assert!(!report.notes.iter().any(|note| note.contains("window")), "it is applied there");
}

#[test]
fn types_are_of_matrices_and_vectors_stay_as_they_are() {
    let folder = parity("mistral");
    let exact = stored(&folder, "model.layers.0.mlp.up_proj.weight");
    for (kind, code, file_code, distance) in
        [(GgufType::BF16, 30, 32, 1.0 / 256.0), (GgufType::Q8_0, 8, 7, 1.0 / 220.0)]
    {
        let (gguf, report) = exported(&folder, Some(kind));
        assert!(report.notes.iter().any(|note| note.contains("window of 7 tokens")), "{:?}", report.notes);
        assert_eq!(gguf.text("general.architecture"), "llama");
        assert_eq!(gguf.count("general.file_type"), file_code);
        assert_eq!(gguf.tensors["blk.0.attn_norm.weight"].kind, 0);
        let tensor = &gguf.tensors["blk.0.ffn_up.weight"];
        assert_eq!(tensor.kind, code);
        for (block, exact) in tensor.numbers().chunks(32).zip(exact.chunks(32)) {
            let largest = exact.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            assert!(block.iter().zip(exact).all(|(x, y)| (x - y).abs() <= distance * largest), "{block:?} {exact:?}");
        }
    }
    let (gguf, _) = exported(&folder, Some(GgufType::F16));
    assert_eq!((gguf.tensors["token_embd.weight"].kind, gguf.count("general.file_type")), (1, 1));
}

#[test]
fn adapters_are_added_to_their_matrices() {
    let folder = parity("llama");
    let here = TempDir::new().expect("a folder");
    let out = here.path().join("model.gguf");
    let path = fixture("parity/llama/lora_init");
    let adapter = AdapterFolder::open(&path).expect("an adapter");
    export_gguf(&model(&folder), Some(&adapter), &folder, None, &out).expect("exported");
    let gguf = read(&out);
    let module = "model.layers.1.self_attn.o_proj";
    let (a, b) = (
        stored(&path, &format!("base_model.model.{module}.lora_A.weight")),
        stored(&path, &format!("base_model.model.{module}.lora_B.weight")),
    );
    let (base, r, scale) = (stored(&folder, &format!("{module}.weight")), adapter.lora.r, adapter.lora.scale());
    let found = gguf.tensors["blk.1.attn_output.weight"].numbers();
    assert_ne!(found, base);
    for (index, (found, base)) in found.iter().zip(&base).enumerate() {
        let (row, column) = (index / 32, index % 32);
        let product: f32 = (0..r).map(|i| b[row * r + i] * a[i * 32 + column]).sum();
        assert!((found - base - scale * product).abs() < 1e-5, "row {row}, column {column}");
    }
}

#[test]
fn what_llama_cpp_would_compute_otherwise_is_refused() {
    let check = |folder: &Path, part: &str| {
        let here = TempDir::new().expect("a folder");
        let error = export(folder, None, &here.path().join("model.gguf")).expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(std::fs::read_dir(here.path()).expect("a folder").count(), 0, "nothing is left");
    };
    check(&parity("t5"), "t5 models cannot be written for llama.cpp; llama, mistral, qwen2, qwen3, gemma2 can");
    check(&parity("nanochat"), "nanochat models");
    check(&parity("reward"), "ForSequenceClassification");
    check(&parity("gemma2"), "scores scaled by 1/sqrt(16)");
    check(changed("llama", &[("hidden_act", "gelu".into())]).path(), "the activation Silu, this model Gelu");
    let even = serde_json::json!(["full_attention", "sliding_attention"]);
    check(
        changed("gemma2", &[("query_pre_attn_scalar", 16.into()), ("layer_types", even)]).path(),
        "every other layer",
    );
    check(changed("llama", &[("vocab_size", 130.into())]).path(), "has shape [131, 32]");
}

#[test]
fn numbers_beyond_a_type_are_refused() {
    let folder = changed("mistral", &[]);
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("readable");
    // The first number of the first tensor, which is the head's matrix.
    let first = 8 + u64::from_le_bytes(*bytes.first_chunk().expect("a header")) as usize;
    let here = TempDir::new().expect("a folder");
    let out = here.path().join("model.gguf");
    let mut with = |number: f32, stored| {
        bytes[first..first + 4].copy_from_slice(&number.to_le_bytes());
        std::fs::write(&path, &bytes).expect("written");
        export(folder.path(), Some(stored), &out)
    };
    let error = with(1e6, GgufType::F16).expect_err("refused").to_string();
    assert!(error.contains("`lm_head.weight` has numbers beyond the range of f16; choose bf16 or f32"), "{error}");
    let error = with(f32::NAN, GgufType::F32).expect_err("refused").to_string();
    assert!(error.contains("`lm_head.weight` holds NaN"), "{error}");
    assert_eq!(std::fs::read_dir(here.path()).expect("a folder").count(), 0, "nothing is left");
    with(1e6, GgufType::BF16).expect("exported");
}
