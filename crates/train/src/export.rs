//! Folders that Hugging Face loads: the whole model, or a PEFT adapter.

use std::path::Path;

use plimsoll_files::{NewFolder, Summed};
use plimsoll_graph::DType;
use plimsoll_models::ParameterKind;
use plimsoll_runtime::weights::{OutTensor, ReadRegion, write_safetensors};
use serde_json::{Value as Json, json};

use crate::adapter_folder::{BASE_FILE, base_file};
use crate::weights::{adapter_prefix, coded_place};
use crate::{Session, TrainError};

/// Name and content of files that are written as they are.
pub type TextFiles = Vec<(String, Vec<u8>)>;

/// Writes what was trained, with the given tokenizer files beside it, into a folder that is new or empty. It appears
/// complete or not at all.
pub fn export(session: &mut Session, folder: &Path, tokenizer: &[(String, Vec<u8>)]) -> Result<(), TrainError> {
    whole(session, folder, tokenizer)?.commit(folder).map_err(|e| TrainError::io(folder, e))
}

/// As [`export`], in place of a folder that this run has written before.
pub(crate) fn export_again(
    session: &mut Session,
    folder: &Path,
    tokenizer: &[(String, Vec<u8>)],
) -> Result<(), TrainError> {
    whole(session, folder, tokenizer)?.replace(folder).map_err(|e| TrainError::io(folder, e))
}

/// The weights that adapters stand beside, where no files have them: a folder of their own, in place of one that is there.
pub(crate) fn export_base(
    session: &mut Session,
    folder: &Path,
    tokenizer: &[(String, Vec<u8>)],
) -> Result<(), TrainError> {
    let io = |e| TrainError::io(folder, e);
    let new = NewFolder::create(folder).map_err(io)?;
    let mut beside = tokenizer.to_vec();
    let config = serde_json::to_vec_pretty(&model_config(session, &mut beside)).expect("plain data");
    beside.insert(0, ("config.json".to_owned(), config));
    let tensors = vec![("model.safetensors".to_owned(), tensors(session, ParameterKind::Base))];
    let backend = &*session.executor().backend();
    Parts { tensors, small: beside }.write(&new, folder, &|region, bytes| backend.read(region, bytes))?;
    new.replace(folder).map_err(io)
}

fn whole(session: &mut Session, folder: &Path, tokenizer: &[(String, Vec<u8>)]) -> Result<NewFolder, TrainError> {
    let new = NewFolder::create(folder).map_err(|e| TrainError::io(folder, e))?;
    let parts = model_parts(session, tokenizer);
    let backend = &*session.executor().backend();
    parts.write(&new, folder, &|region, bytes| backend.read(region, bytes))?;
    Ok(new)
}

/// The files of a folder: those with tensors, whose bytes are elsewhere, and the small ones.
pub(crate) struct Parts {
    pub tensors: Vec<(String, Vec<OutTensor>)>,
    pub small: TextFiles,
}

impl Parts {
    /// `folder` is what `new` is going to be called.
    pub fn write(
        &self,
        new: &NewFolder,
        folder: &Path,
        read: &ReadRegion<'_>,
    ) -> Result<Vec<(String, Summed)>, TrainError> {
        let mut files = Vec::new();
        for (name, tensors) in &self.tensors {
            files.push((name.clone(), write_tensors(new, folder, name, tensors, read)?));
        }
        for (name, bytes) in &self.small {
            let written = new.write(name, bytes).map_err(|e| TrainError::io(&folder.join(name), e))?;
            files.push((name.clone(), written));
        }
        Ok(files)
    }
}

/// A model or an adapter.
pub(crate) fn model_parts(session: &mut Session, tokenizer: &[(String, Vec<u8>)]) -> Parts {
    let mut beside = tokenizer.to_vec();
    let (config_name, config) = match &session.recipe.lora {
        Some(_) => ("adapter_config.json", adapter_config(session)),
        None => ("config.json", model_config(session, &mut beside)),
    };
    let config = serde_json::to_vec_pretty(&config).expect("plain data");
    beside.insert(0, (config_name.to_owned(), config));
    if let (Some(_), Some(format)) = (&session.recipe.lora, session.recipe.base) {
        let content = base_file(format, torch_name(session.recipe.compute));
        beside.push((BASE_FILE.to_owned(), serde_json::to_vec_pretty(&content).expect("plain data")));
    }
    let weights = format!("{}.safetensors", weights_stem(session));
    Parts { tensors: vec![(weights, trained_tensors(session))], small: beside }
}

/// A file of tensors.
fn write_tensors(
    new: &NewFolder,
    folder: &Path,
    name: &str,
    tensors: &[OutTensor],
    read: &ReadRegion<'_>,
) -> Result<Summed, TrainError> {
    let path = folder.join(name);
    let io = |e| TrainError::io(&path, e);
    let mut file = new.file(name).map_err(io)?;
    write_safetensors(&path, &mut file, tensors, read)?;
    file.finish().map_err(io)
}

/// What the weights' file is called, without its ending.
pub(crate) fn weights_stem(session: &Session) -> &'static str {
    if session.recipe.lora.is_some() { "adapter_model" } else { "model" }
}

/// What a run leaves of a session: the whole model, or the adapter.
pub(crate) fn trained_tensors(session: &mut Session) -> Vec<OutTensor> {
    let adapted = session.recipe.lora.is_some();
    tensors(session, if adapted { ParameterKind::Adapter } else { ParameterKind::Base })
}

/// Every Hugging Face tensor of the given kind, and the head's, at its place in the arena.
fn tensors(session: &mut Session, kind: ParameterKind) -> Vec<OutTensor> {
    let parameters = session.parameters().to_vec();
    let mut tensors = Vec::new();
    for parameter in parameters.iter().filter(|p| p.kind == kind || p.kind == ParameterKind::Head) {
        let prefix = if kind == ParameterKind::Adapter { adapter_prefix(parameter) } else { "" };
        let dtype = session.executor().plan().slots.get(parameter.slot).dtype();
        for tensor in &parameter.tensors {
            let coded = coded_place(session, parameter.slot, tensor);
            let region = match &coded {
                Some(place) => place.region,
                None => session.rows_region(parameter.slot, tensor.first_row, tensor.shape.rows()),
            };
            let (name, shape) = (format!("{prefix}{}", tensor.name), tensor.shape);
            tensors.push(OutTensor { name, shape, dtype, region, coded });
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
        "base_model_name_or_path": session.base_name(),
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
