//! Small random models against Hugging Face transformers and PEFT: loss, gradients, ten updates.
//! The fixtures are made by `fixtures/make_parity.py`.

use plimsoll_data::{Example, ExampleRef};
use plimsoll_graph::DType;
use plimsoll_models::{Lora, Recipe, Targets};
use plimsoll_train::{AdapterFolder, Merge, Model, SHARD_BYTES, Session};
use serde_json::Value as Json;

use crate::support::{fixture, json, on_cuda, recipe, session, tensors};

const FAMILIES: [&str; 9] = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "nanochat", "t5", "t5_untied", "mt5"];
const MAX_LENGTH: usize = 24;

/// The batch as next-token targets: `labels[i + 1]` belongs to position `i`.
pub fn examples(family: &str) -> Vec<Example> {
    let batch = json(&fixture(family).join("batch.json"));
    let numbers =
        |v: &Json| -> Vec<i64> { v.as_array().into_iter().flatten().map(|x| x.as_i64().expect("a number")).collect() };
    let sequences = batch["sequences"].as_array().expect("a list");
    let example = |sequence: &Json| {
        let (ids, labels) = (numbers(&sequence["input_ids"]), numbers(&sequence["labels"]));
        let next = labels[1..].iter().copied().chain([-100]);
        Example {
            tokens: ids.iter().map(|&t| t as u32).collect(),
            targets: next.map(|t| t as i32).collect(),
            source: numbers(&sequence["source"]).iter().map(|&t| t as u32).collect(),
            ..Example::default()
        }
    };
    sequences.iter().map(example).collect()
}

fn lora_session(family: &str) -> Session {
    let config = json(&fixture(family).join("lora_init/adapter_config.json"));
    let lora = Lora {
        r: config["r"].as_u64().expect("r") as usize,
        alpha: config["lora_alpha"].as_f64().expect("alpha") as f32,
        dropout: 0.0,
        targets: Targets::AllLinear,
        rslora: config["use_rslora"].as_bool().unwrap_or(false),
    };
    let mut session = session(family, recipe(Some(lora)), 6, MAX_LENGTH, |_| {});
    session.load_adapters(&fixture(family).join("lora_init")).expect("adapters");
    session
}

fn relative(found: f64, expected: f64) -> f64 {
    (found - expected).abs() / expected.abs()
}

/// Loss of the first step, gradients of every parameter, the norm, then ten updates.
fn check(family: &str, kind: &str, mut session: Session) {
    let expected = json(&fixture(family).join(format!("{kind}.json")));
    let examples = examples(family);
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    let batches = session.pack(&views).expect("fits");
    let losses: Vec<f64> =
        expected["losses"].as_array().expect("losses").iter().map(|l| l.as_f64().expect("a loss")).collect();

    let loss = session.accumulate(&batches, 1).expect("runs");
    assert!(relative(loss, losses[0]) < 1e-5, "{family} {kind}: loss {loss} instead of {}", losses[0]);
    check_gradients(family, kind, &session);
    let norm = session.apply(1, 1e-3).expect("runs");
    assert!(relative(norm, expected["grad_norm"].as_f64().expect("a norm")) < 1e-4, "{family} {kind}: norm {norm}");

    for (index, &wanted) in losses.iter().enumerate().skip(1) {
        let step = index as u64 + 1;
        let found = session.update(&batches, step, 1e-3).expect("runs").loss;
        assert!(relative(found, wanted) < 1e-3, "{family} {kind}, step {step}: {found} instead of {wanted}");
    }
    let last = session.accumulate(&batches, 11).expect("runs");
    let wanted = expected["final_loss"].as_f64().expect("a loss");
    assert!(relative(last, wanted) < 1e-3, "{family} {kind}: in the end {last} instead of {wanted}");
}

fn check_gradients(family: &str, kind: &str, session: &Session) {
    let expected = tensors(&fixture(family).join(format!("{kind}_grads.safetensors")));
    let mut compared = 0;
    for parameter in session.parameters().to_vec().iter().filter(|p| p.trainable) {
        let gradient = session.gradient(&parameter.name).expect("readable").expect("trained");
        let cols = parameter.shape.elements() / parameter.shape.rows();
        for tensor in &parameter.tensors {
            let found = &gradient[tensor.first_row * cols..][..tensor.shape.elements()];
            let wanted = &expected[&tensor.name];
            let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
            let size = norm(&mut wanted.iter().map(|&w| f64::from(w)));
            let off = norm(&mut found.iter().zip(wanted).map(|(&f, &w)| f64::from(f) - f64::from(w)));
            assert!(off <= 1e-4 * size, "{family} {kind}: gradient of {} is off by {:.1e}", tensor.name, off / size);
            compared += 1;
        }
    }
    assert_eq!(compared, expected.len(), "{family} {kind}: every gradient of the reference is compared");
}

#[test]
fn full_training_follows_transformers() {
    for family in FAMILIES {
        check(family, "full", session(family, recipe(None), 6, MAX_LENGTH, |_| {}));
    }
}

#[test]
fn lora_follows_peft() {
    for family in FAMILIES {
        check(family, "lora", lora_session(family));
    }
}

/// Without their adapters, merged models compute the loss that PEFT computes with them.
#[test]
fn merged_adapters_are_as_they_were_beside_the_base() {
    let here = tempfile::tempdir().expect("a folder");
    for (family, shard_bytes) in FAMILIES.into_iter().zip([SHARD_BYTES, 20_000].into_iter().cycle()) {
        let losses = |kind: &str| json(&fixture(family).join(format!("{kind}.json")))["losses"][0].as_f64();
        let (before, expected) = (losses("full").expect("a loss"), losses("lora").expect("a loss"));
        assert!(relative(before, expected) > 1e-4, "{family}: the adapters do something");
        let base = Model::find(&fixture(family).join("model").display().to_string()).expect("a model");
        let adapter = AdapterFolder::open(&fixture(family).join("lora_init")).expect("an adapter");
        let merge = Merge::open(&base, &adapter, Vec::new(), shard_bytes).expect("they belong together");
        assert!(merge.plan.folded > 0 && merge.plan.replaced == 0, "{family}: {:?}", merge.plan);
        let folder = here.path().join(family);
        let mut ticks = Vec::new();
        merge.write(&folder, &mut |done, _| ticks.push(done)).expect("writable");
        assert!(ticks.is_sorted() && ticks.last().is_some_and(|&done| done <= merge.plan.output_bytes));
        assert_eq!(merge.plan.shards > 1, folder.join("model.safetensors.index.json").exists(), "{family}");
        assert_eq!(merge.plan.shards > 1, shard_bytes < SHARD_BYTES, "{family}");
        let model = Model::find(&folder.display().to_string()).expect("a model");
        let mut session = session(family, recipe(None), 6, MAX_LENGTH, |spec| spec.model = model.clone());
        let examples = examples(family);
        let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
        let batches = session.pack(&views).expect("fits");
        let loss = session.accumulate(&batches, 1).expect("runs");
        assert!(relative(loss, expected) < 1e-5, "{family}: loss {loss} instead of {expected}");
    }
}

/// Flat packed batches give what each sequence gives alone, whatever the micro-batch.
#[test]
fn packed_equals_padded() {
    for family in FAMILIES {
        let expected = json(&fixture(family).join("full.json"));
        let examples = examples(family);
        for tokens in [24, 48, 96] {
            let mut session =
                session(family, recipe(None), 6, MAX_LENGTH, |s| s.pins.micro_batch_tokens = Some(tokens));
            let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
            let batches = session.pack(&views).expect("fits");
            let loss = session.accumulate(&batches, 1).expect("runs");
            let wanted = expected["loss"].as_f64().expect("a loss");
            assert!(relative(loss, wanted) < 1e-5, "{family}, {tokens} tokens: {loss} instead of {wanted}");
        }
    }
}

/// Sixteen-bit training on a card follows float32 training of the reference loosely. The CPU has no such type.
#[test]
fn bf16_follows_transformers_loosely() {
    for family in FAMILIES {
        let expected = json(&fixture(family).join("full.json"));
        let recipe = Recipe { compute: DType::BF16, master: true, ..recipe(None) };
        let mut session = session(family, recipe, 6, MAX_LENGTH, |_| {});
        let examples = examples(family);
        let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
        let batches = session.pack(&views).expect("fits");
        if !on_cuda() {
            assert!(session.accumulate(&batches, 1).is_err(), "the CPU says that it has no such type");
            continue;
        }
        for (index, wanted) in expected["losses"].as_array().expect("losses").iter().enumerate() {
            let wanted = wanted.as_f64().expect("a loss");
            let found = session.update(&batches, index as u64 + 1, 1e-3).expect("runs").loss;
            assert!(relative(found, wanted) < 1e-2, "{family}, step {}: {found} instead of {wanted}", index + 1);
        }
    }
}

/// As in transformers, a head that is stored beside a different embedding is its own, whatever the configuration says.
#[test]
fn a_head_stored_apart_is_not_tied() {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(fixture("llama").join("model")).expect("readable").filter_map(Result::ok) {
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("copied");
    }
    let path = folder.path().join("config.json");
    let mut config = json(&path);
    assert_eq!(config["tie_word_embeddings"], false);
    config["tie_word_embeddings"] = true.into();
    std::fs::write(&path, config.to_string()).expect("written");
    let found = Model::find(folder.path().to_str().expect("UTF-8")).expect("a model").config;
    assert_eq!((found.head.tied, &found.source["tie_word_embeddings"]), (false, &false.into()));

    let tied = Model::find(fixture("qwen2").join("model").to_str().expect("UTF-8")).expect("a model");
    assert!(tied.config.head.tied);
}
