//! What merging takes, and what it refuses. That merged models compute the same is in `parity.rs` and `reward.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_models::{Lora, Targets};
use plimsoll_train::{AdapterFolder, Merge, Model, SHARD_BYTES, TrainError, export};
use serde_json::json;

use crate::support::{recipe, spec, start};

fn lora(rslora: bool) -> Lora {
    Lora { r: 4, alpha: 8.0, dropout: 0.0, targets: Targets::AllLinear, rslora }
}

/// A model of so many layers, and an adapter for it.
fn folders(here: &Path, layers: usize) -> (PathBuf, PathBuf) {
    let shape = json!({
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": layers, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 64,
    });
    let (base, adapter) = (here.join(format!("base-{layers}")), here.join(format!("adapter-{layers}")));
    let mut session = start(&spec(Model::from_shape(shape).expect("valid"), recipe(None), 2, 16), false).session;
    export(&mut session, &base, &[]).expect("writable");
    let model = Model::find(&base.display().to_string()).expect("a model");
    let mut session = start(&spec(model, recipe(Some(lora(true))), 2, 16), false).session;
    export(&mut session, &adapter, &[]).expect("writable");
    (base, adapter)
}

fn open(base: &Path, adapter: &Path) -> Result<Merge, TrainError> {
    let base = Model::find(&base.display().to_string()).expect("a model");
    let beside = vec![("tokenizer.json".to_owned(), b"{}".to_vec())];
    Merge::open(&base, &AdapterFolder::open(adapter).expect("an adapter"), beside, SHARD_BYTES)
}

/// Entries of a table, and nothing else, grow with the model's depth.
#[test]
fn memory_does_not_depend_on_the_number_of_layers() {
    let here = tempfile::tempdir().expect("a folder");
    let plans = [2, 12].map(|layers| {
        let (base, adapter) = folders(here.path(), layers);
        let plan = open(&base, &adapter).expect("they belong together").plan;
        assert_eq!(plan.folded, 7 * layers, "seven matrices a layer");
        plan
    });
    let more = (plans[1].tensors - plans[0].tensors) as u64;
    // The configuration says how many there are, too.
    assert!(plans[1].memory_bytes - plans[0].memory_bytes <= more * 2048 + 64, "{plans:?}");
    assert!(plans[1].output_bytes > 3 * plans[0].output_bytes);
}

#[test]
fn what_the_model_came_with_travels() {
    let here = tempfile::tempdir().expect("a folder");
    let (base, adapter) = folders(here.path(), 2);
    let out = here.path().join("new/merged");
    open(&base, &adapter).expect("they belong together").write(&out, &mut |_, _| {}).expect("writable");
    let config = |folder: &Path| fs::read(folder.join("config.json")).expect("there");
    assert_eq!(config(&out), config(&base));
    assert_eq!(crate::run::names(&out), ["config.json", "model.safetensors", "tokenizer.json"]);
    // Adapters that have learnt nothing change nothing.
    let weights = |folder: &Path| crate::support::tensors(&folder.join("model.safetensors"));
    assert_eq!(weights(&out), weights(&base));
}

#[test]
fn what_cannot_be_merged_is_refused_and_leaves_nothing() {
    let here = tempfile::tempdir().expect("a folder");
    let (base, adapter) = folders(here.path(), 2);
    let (deeper, of_deeper) = folders(here.path(), 3);
    let error = open(&base, &of_deeper).err().expect("it has more layers");
    assert!(matches!(&error, TrainError::AdapterTensor { name, .. } if name.contains("layers.2")), "{error}");
    open(&deeper, &adapter).expect("layers without adapters stay as they are");
    // A folder that holds something stays as it is.
    let out = here.path().join("out");
    fs::create_dir(&out).expect("writable");
    fs::write(out.join("precious"), "mine").expect("writable");
    let refused = open(&base, &adapter).expect("they belong together").write(&out, &mut |_, _| {});
    assert!(matches!(refused, Err(TrainError::Occupied { .. })), "{refused:?}");
    // A base that changes shape under the same names.
    let config = fs::read_to_string(adapter.join("adapter_config.json")).expect("readable");
    let wider = here.path().join("wider");
    fs::create_dir(&wider).expect("writable");
    fs::write(wider.join("adapter_config.json"), config).expect("writable");
    let bytes = fs::read(adapter.join("adapter_model.safetensors")).expect("readable");
    let text = |from: &str| from.as_bytes().to_vec();
    let (from, to) = (text("\"shape\":[4,64]"), text("\"shape\":[64,4]"));
    let at = bytes.windows(from.len()).position(|window| window == from).expect("of a projection down");
    let changed = [&bytes[..at], &to, &bytes[at + from.len()..]].concat();
    fs::write(wider.join("adapter_model.safetensors"), changed).expect("writable");
    let error = open(&base, &wider).err().expect("its shape is another");
    assert!(matches!(error, TrainError::Weights(_)), "{error}");
    let mut left: Vec<String> = crate::run::names(here.path());
    left.retain(|name| name.contains("partial"));
    assert!(left.is_empty() && crate::run::names(&out) == ["precious"], "{left:?}");
}
