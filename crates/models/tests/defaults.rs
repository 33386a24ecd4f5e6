//! What is taken where a `config.json` says nothing, key by key, beside what transformers' configuration classes take.

use std::collections::BTreeSet;
use std::path::Path;

use plimsoll_models::Architecture;
use serde_json::{Map, Value as Json, json};

fn fixture() -> Map<String, Json> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/defaults.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON")
}

/// The configuration of a case, and what becomes of it.
fn case(base: &Json, case: &Json) -> (Map<String, Json>, Map<String, Json>) {
    let mut given = base.as_object().expect("an object").clone();
    if let Some(key) = case["without"].as_str() {
        given.remove(key).expect("a key of the base");
    }
    if let Some(more) = case["with"].as_object() {
        given.extend(more.clone());
    }
    let mut resolved = given.clone();
    resolved.extend(case["resolved"].as_object().expect("an object").clone());
    (given, resolved)
}

/// Numbers are the same whether they are written with a point or without.
fn same(a: &Json, b: &Json) -> bool {
    match (a, b) {
        (Json::Number(a), Json::Number(b)) => a.as_f64() == b.as_f64(),
        (Json::Object(a), Json::Object(b)) => {
            // The older word for `rope_type` may stand beside it.
            let keys =
                |map: &Map<String, Json>| map.keys().filter(|key| *key != "type").cloned().collect::<BTreeSet<_>>();
            keys(a) == keys(b) && keys(a).iter().all(|key| same(&a[key], &b[key]))
        }
        _ => a == b,
    }
}

#[test]
fn absent_keys_mean_what_they_mean_to_transformers() {
    let mut compared = 0;
    for (family, entry) in fixture() {
        for one in entry["cases"].as_array().expect("cases") {
            let (mut given, mut resolved) = case(&entry["base"], one);
            given.insert("model_type".into(), family.clone().into());
            let place = format!("{family}, without {}, with {}", one["without"], one["with"]);
            let model = Architecture::from_value(Json::Object(given)).unwrap_or_else(|e| panic!("{place}: {e}"));
            // Classes that declare no head dim divide the width by the heads where they are built.
            if resolved.get("head_dim").is_some_and(Json::is_null) {
                let count = |key: &str| resolved[key].as_u64().expect("a number");
                let head_dim = count("hidden_size") / count("num_attention_heads");
                resolved.insert("head_dim".into(), head_dim.into());
            }
            // Spellings that transformers resolves into `rope_parameters`.
            for older in ["rope_theta", "rope_scaling", "original_max_position_embeddings"] {
                resolved.remove(older);
            }
            for (key, wanted) in &resolved {
                let found = model.source.get(key).unwrap_or(&Json::Null);
                assert!(same(found, wanted), "{place}: `{key}` is {found} instead of {wanted}");
                compared += 1;
            }
        }
    }
    assert!(compared > 2000, "{compared}");
}

/// What was taken is what the model is built of, not only what is written back.
#[test]
fn defaults_decide_the_shape() {
    let read = |json: Json| Architecture::from_value(json).expect("valid");
    let qwen3 = read(serde_json::json!({"model_type": "qwen3", "hidden_size": 64, "num_attention_heads": 32}));
    assert_eq!(qwen3.source["head_dim"], 128);
    let mistral = read(serde_json::json!({"model_type": "mistral", "num_attention_heads": 16}));
    let shapes = |model: &Architecture| format!("{:?}", model.stacks[0].blocks[0].branches[0].module);
    assert!(shapes(&qwen3).contains("head_dim: 128"), "{}", shapes(&qwen3));
    assert!(shapes(&mistral).contains("kv: 8"), "{}", shapes(&mistral));
    assert!(shapes(&mistral).contains("window: Some(4096)"), "{}", shapes(&mistral));
    assert_eq!(qwen3.rotary.expect("rotary").theta, 10_000.0);
    assert_eq!(read(serde_json::json!({"model_type": "gemma2"})).embedding.padding, Some(0));
}

#[test]
fn dropout_that_would_be_left_out_is_refused() {
    for family in ["llama", "mistral", "qwen2", "qwen3", "gemma2", "nanochat"] {
        let config = |rate: f64| serde_json::json!({"model_type": family, "attention_dropout": rate});
        let refused = Architecture::from_value(config(0.1)).expect_err("refused").to_string();
        assert!(refused.contains("`attention_dropout: 0.1`"), "{refused}");
        Architecture::from_value(config(0.0)).expect("no dropout");
    }
}

/// What would be computed otherwise than meant, or not at all.
#[test]
fn values_that_make_no_sense_are_refused() {
    let llama3 = |low: f64, high: f64| json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": low, "high_freq_factor": high});
    let kinds = |kinds: [&str; 2]| json!({"num_hidden_layers": 2, "use_sliding_window": true, "layer_types": kinds});
    for (family, keys, says) in [
        ("llama", json!({"hidden_act": 5}), "`hidden_act` must be a string, found 5"),
        ("llama", json!({"rms_norm_eps": -1}), "`rms_norm_eps` must be a number above 0, found -1"),
        ("llama", json!({"rope_theta": 0}), "`rope_theta` must be a number above 0, found 0"),
        ("llama", json!({"rope_parameters": {"rope_theta": -1}}), "`rope_theta` must be a number above 0, found -1"),
        (
            "llama",
            json!({"rope_scaling": {"type": "linear", "factor": 0}}),
            "`factor` must be a number above 0, found 0",
        ),
        ("llama", json!({"rope_scaling": {"type": 1}}), "`type` must be a string, found 1"),
        ("llama", json!({"rope_scaling": llama3(5.0, 4.0)}), "`low_freq_factor` must not be above `high_freq_factor`"),
        (
            "llama",
            json!({"rope_scaling": {"type": "linear", "factor": 2}, "partial_rotary_factor": 0.5}),
            "`partial_rotary_factor` with rope scaling `linear` is not supported",
        ),
        (
            "gemma2",
            json!({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}),
            "rotary settings of their own for some layers (`full_attention`) are not supported",
        ),
        ("gemma2", json!({"query_pre_attn_scalar": 0}), "`query_pre_attn_scalar` must be a number above 0"),
        ("gemma2", json!({"final_logit_softcapping": 0}), "`final_logit_softcapping` must be a number above 0"),
        ("qwen2", kinds(["chunked_attention", "full_attention"]), "`layer_types` has \"chunked_attention\""),
        (
            "qwen3",
            json!({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}),
            "`layer_types` has sliding_attention, but no window applies",
        ),
        ("t5", json!({"feed_forward_proj": true}), "`feed_forward_proj` must be a string, found true"),
        ("t5", json!({"layer_norm_epsilon": 0}), "`layer_norm_epsilon` must be a number above 0"),
    ] {
        let refused = Architecture::from_value(with(family, &keys)).expect_err(says).to_string();
        assert!(refused.contains(says), "{refused}");
    }
    Architecture::from_value(with("qwen2", &kinds(["sliding_attention", "full_attention"]))).expect("a window");
    Architecture::from_value(with("llama", &json!({"rope_scaling": llama3(4.0, 4.0)}))).expect("no steps between");
}

fn with(family: &str, keys: &Json) -> Json {
    let mut config = keys.clone();
    config["model_type"] = family.into();
    config
}

/// Of every key that counts something: what no machine holds is refused by its name, and nothing is computed from it.
#[test]
fn figures_have_limits() {
    let counts = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "d_model",
        "d_kv",
        "d_ff",
        "num_layers",
        "num_decoder_layers",
        "num_heads",
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
    ];
    let defaults: Json = serde_json::from_str(include_str!("../defaults.json")).expect("JSON");
    let mut refusals = 0;
    for (family, known) in defaults.as_object().expect("families") {
        for key in counts.iter().filter(|key| known.get(**key).is_some()) {
            for value in [
                json!(0),
                json!(-1),
                json!(1.5),
                json!("16"),
                json!(true),
                json!(1u64 << 62),
                json!(u64::MAX),
                json!(1e30),
            ] {
                let config = with(family, &json!({*key: value}));
                let refused = Architecture::from_value(config).expect_err(key).to_string();
                assert!(refused.contains(&format!("`{key}` must be")), "{family}: {refused}");
                refusals += 1;
            }
        }
    }
    assert!(refusals > 500, "{refusals}");
}
