//! Which model: by name, or by its shape.

use serde_json::{Map, Value as Json, json};

use super::kind::Value;
use super::reader::Reader;
use super::words::Init;
use crate::error::Failure;

#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// A preset, a local Hugging Face folder or a hub id.
    Name(String),
    Shape(ModelShape),
}

/// A model described in the run file itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    pub family: String,
    /// What a Hugging Face `config.json` would say, `model_type` (the family) included.
    pub config: Map<String, Json>,
}

/// Without these no model can be built.
const REQUIRED: [&str; 5] =
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"];

/// The model, and where its first weights come from.
pub fn read(root: &Reader<'_>) -> Result<(ModelSource, Init), Failure> {
    let init: Init = root.get("init")?;
    let Some(section) = root.given("model")? else {
        let name = root.find("model")?.ok_or_else(|| {
            root.missing("model")
                .hint("a preset such as `qwen3-0.6b`, a Hugging Face folder, a hub id, or the shape as a mapping")
        })?;
        return Ok((ModelSource::Name(name), init));
    };
    let init = section.find("init")?.unwrap_or(init);
    if init == Init::Pretrained {
        return Err(Failure::usage("`init: pretrained` needs a model with weights, but `model` gives only a shape")
            .hint("name a folder or a hub id under `model`, or use `init: random`"));
    }
    Ok((ModelSource::Shape(shape(&section)?), init))
}

fn shape(section: &Reader<'_>) -> Result<ModelShape, Failure> {
    let family: String = section.get("family")?;
    for name in REQUIRED {
        if section.node(name).is_none() {
            return Err(section.missing(name));
        }
    }
    let mut config = Map::new();
    config.insert("model_type".to_owned(), json!(family));
    for (name, value) in section.leaves()? {
        if !matches!(name, "family" | "init") {
            config.insert(name.to_owned(), to_json(value));
        }
    }
    if let Some(scaling) = section.given("rope_scaling")? {
        let mut inner = Map::new();
        for (name, value) in scaling.leaves()? {
            let name = if name == "type" { "rope_type" } else { name };
            inner.insert(name.to_owned(), to_json(value));
        }
        if !inner.is_empty() {
            config.insert("rope_scaling".to_owned(), Json::Object(inner));
        }
    }
    Ok(ModelShape { family, config })
}

fn to_json(value: Value) -> Json {
    match value {
        Value::Text(text) => json!(text),
        Value::Bool(value) => json!(value),
        Value::Integer(value) => json!(value),
        Value::Number(value) => json!(value),
        Value::Numbers(values) => json!(values),
        Value::Texts(values) => json!(values),
        // No key of a model's shape holds one of these.
        Value::None | Value::Sources(_) | Value::Budget(_) | Value::Extent(_) => Json::Null,
    }
}
