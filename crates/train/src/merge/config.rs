//! The files beside the weights: what the base model came with, and what the adapter changes of it.

use std::fs;
use std::path::Path;

use plimsoll_runtime::weights::Checkpoint;
use serde_json::{Map, Value as Json, json};

use super::PREFIX;
use crate::task::name_padding;
use crate::{AdapterFolder, Model, TextFiles, TrainError};

pub(super) struct Files {
    pub small: TextFiles,
    /// Whether the model gives scores instead of words.
    pub is_scored: bool,
}

/// `beside`: the tokenizer's files and whatever else travels as it is.
pub(super) fn files(
    base: &Model,
    adapter: &AdapterFolder,
    adapters: &Checkpoint,
    mut beside: TextFiles,
) -> Result<Files, TrainError> {
    let path = base.folder().unwrap_or(Path::new("")).join("config.json");
    let config = fs::read(&path).map_err(|source| TrainError::Read { path, source })?;
    let labels = adapters.info(&format!("{PREFIX}score.weight")).map(|info| info.shape.first().copied().unwrap_or(1));
    let is_scored = adapter.task_type.as_deref() == Some("SEQ_CLS") && labels.is_some();
    let config = match labels.filter(|_| is_scored) {
        Some(labels) => scored_config(base, labels, &mut beside),
        None => untied(base, adapters, config),
    };
    beside.insert(0, ("config.json".to_owned(), config));
    Ok(Files { small: beside, is_scored })
}

/// Of a model whose head gives scores.
fn scored_config(base: &Model, labels: usize, tokenizer: &mut TextFiles) -> Vec<u8> {
    let mut config = base.config.source.clone();
    config["architectures"] = json!([base.config.family.class_for("SequenceClassification")]);
    // A base that is such a model already has names for them.
    if config["id2label"].as_object().is_none_or(|names| names.len() != labels) {
        let named = |index: usize| format!("LABEL_{index}");
        let ids: Map<String, Json> = (0..labels).map(|i| (i.to_string(), json!(named(i)))).collect();
        let names: Map<String, Json> = (0..labels).map(|i| (named(i), json!(i))).collect();
        (config["id2label"], config["label2id"]) = (ids.into(), names.into());
    }
    name_padding(&mut config, tokenizer);
    serde_json::to_vec_pretty(&config).expect("plain data")
}

/// The base's own words, unless a head of its own stands where the embedding served as one.
fn untied(base: &Model, adapters: &Checkpoint, config: Vec<u8>) -> Vec<u8> {
    let own_head = adapters.contains(&format!("{PREFIX}{}", base.config.head.name));
    match serde_json::from_slice::<Json>(&config) {
        Ok(mut changed) if own_head && base.config.head.tied => {
            changed["tie_word_embeddings"] = json!(false);
            serde_json::to_vec_pretty(&changed).expect("plain data")
        }
        _ => config,
    }
}
