//! Folders that Hugging Face loads: the whole model, or a PEFT adapter.

use std::fs;
use std::io::Write;
use std::path::Path;

use plimsoll_graph::DType;
use plimsoll_models::ParameterKind;
use plimsoll_runtime::weights::{OutTensor, write_safetensors};
use serde_json::{Value as Json, json};

use crate::weights::adapter_prefix;
use crate::{Session, TrainError};

/// Name and content of files that are written as they are.
pub type TextFiles = Vec<(String, Vec<u8>)>;

/// Writes what was trained, with the given tokenizer files beside it. The folder appears complete or not at all.
pub fn export(session: &mut Session, folder: &Path, tokenizer: &[(String, Vec<u8>)]) -> Result<(), TrainError> {
    let partial = folder.with_extension("partial");
    let result = write_folder(session, &partial, tokenizer).and_then(|()| {
        if folder.exists() {
            remove_folder(folder)?;
        }
        fs::rename(&partial, folder).map_err(|e| TrainError::io(folder, e))
    });
    if result.is_err() {
        // Leave nothing half-written behind; the first error is the one to report.
        let _ = fs::remove_dir_all(&partial);
    }
    result
}

fn write_folder(session: &mut Session, folder: &Path, tokenizer: &[(String, Vec<u8>)]) -> Result<(), TrainError> {
    fs::create_dir_all(folder).map_err(|e| TrainError::io(folder, e))?;
    let mut tokenizer = tokenizer.to_vec();
    let (kind, weights, config_name, config) = match &session.recipe.lora {
        Some(_) => {
            (ParameterKind::Adapter, "adapter_model.safetensors", "adapter_config.json", adapter_config(session))
        }
        None => (ParameterKind::Base, "model.safetensors", "config.json", model_config(session, &mut tokenizer)),
    };
    let tensors = tensors(session, kind);
    write_safetensors(&folder.join(weights), &tensors, session.executor().backend())?;
    let text = serde_json::to_string_pretty(&config).expect("plain data");
    write_whole(&folder.join(config_name), text.as_bytes())?;
    for (name, bytes) in tokenizer {
        write_whole(&folder.join(name), &bytes)?;
    }
    Ok(())
}

/// Every Hugging Face tensor of the given kind, and the head's, at its place in the arena.
fn tensors(session: &mut Session, kind: ParameterKind) -> Vec<OutTensor> {
    let parameters = session.parameters().to_vec();
    let mut tensors = Vec::new();
    for parameter in parameters.iter().filter(|p| p.kind == kind || p.kind == ParameterKind::Head) {
        let prefix = if kind == ParameterKind::Adapter { adapter_prefix(parameter) } else { "" };
        let dtype = session.executor().plan().slots.get(parameter.slot).dtype();
        for tensor in &parameter.tensors {
            let region = session.rows_region(parameter.slot, tensor.first_row, tensor.shape.rows());
            tensors.push(OutTensor { name: format!("{prefix}{}", tensor.name), shape: tensor.shape, dtype, region });
        }
    }
    tensors
}

fn model_config(session: &Session, tokenizer: &mut TextFiles) -> Json {
    let mut config = session.model.config.source.clone();
    config["torch_dtype"] = torch_name(session.recipe.compute).into();
    config.as_object_mut().map(|c| c.remove("dtype"));
    config["architectures"] = json!([session.model.config.family.class_for(session.task.hf_class())]);
    session.task.complete_config(&mut config, tokenizer);
    config
}

/// What PyTorch calls the type that weights are written in.
fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    }
}

fn adapter_config(session: &Session) -> Json {
    let lora = session.recipe.lora.as_ref().expect("asked for an adapter");
    let layers = session.model.config.linear_layers();
    let targets: Vec<&str> = layers.into_iter().filter(|layer| lora.adapts(layer)).collect();
    let head: Vec<String> = session.head_modules();
    let saved_whole = if head.is_empty() { Json::Null } else { json!(head) };
    json!({
        "peft_type": "LORA",
        "task_type": session.task.peft_task_type(),
        "base_model_name_or_path": session.model.name(),
        "r": lora.r,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "use_rslora": lora.rslora,
        "target_modules": targets,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": saved_whole,
    })
}

/// Renames a folder before removing it, so that nobody finds half of it under its name.
pub(crate) fn remove_folder(folder: &Path) -> Result<(), TrainError> {
    let removed = folder.with_extension("removed");
    fs::rename(folder, &removed).and_then(|()| fs::remove_dir_all(&removed)).map_err(|e| TrainError::io(folder, e))
}

/// Writes a file beside its final place and moves it there once it is complete and on disk.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = Path::new(&partial);
    let written = fs::File::create(partial)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(partial, path));
    if written.is_err() {
        let _ = fs::remove_file(partial);
    }
    written.map_err(|e| TrainError::io(path, e))
}
