//! Families: each turns a `config.json` into an [`Architecture`]. One file each, and one line in [`FAMILIES`].

mod decoder;
mod gemma2;
mod keys;
mod llama;
mod mistral;
mod nanochat;
mod qwen;
mod rope;
mod t5;

use serde_json::Value as Json;

use keys::ConfigKeys;

use crate::{Architecture, ModelError};

/// A model family.
pub struct Family {
    /// Hugging Face's `model_type`.
    pub model_type: &'static str,
    /// What the names of its Hugging Face classes begin with.
    class: &'static str,
    describe: fn(&ConfigKeys, &'static Family) -> Result<Architecture, ModelError>,
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.model_type)
    }
}

/// Every family there is.
pub static FAMILIES: [Family; 8] = [
    Family { model_type: "llama", class: "Llama", describe: llama::describe },
    Family { model_type: "mistral", class: "Mistral", describe: mistral::describe },
    Family { model_type: "qwen2", class: "Qwen2", describe: qwen::describe_2 },
    Family { model_type: "qwen3", class: "Qwen3", describe: qwen::describe_3 },
    Family { model_type: "gemma2", class: "Gemma2", describe: gemma2::describe },
    Family { model_type: "nanochat", class: "NanoChat", describe: nanochat::describe },
    Family { model_type: "t5", class: "T5", describe: t5::describe },
    Family { model_type: "mt5", class: "MT5", describe: t5::describe_multilingual },
];

impl Family {
    pub fn named(model_type: &str) -> Result<&'static Family, ModelError> {
        FAMILIES
            .iter()
            .find(|family| family.model_type == model_type)
            .ok_or_else(|| ModelError::Family { name: model_type.to_owned(), known: Self::names().join(", ") })
    }

    pub fn names() -> Vec<&'static str> {
        FAMILIES.iter().map(|family| family.model_type).collect()
    }

    /// Whether a key of `config.json` decides anything about such a model.
    pub fn reads(&self, key: &str) -> bool {
        let own = keys::defaults(self);
        // What decides by its absence has no default.
        let more: &[&str] = if own.contains_key("d_model") {
            &["decoder_start_token_id"]
        } else {
            &["head_dim", "rope_theta", "rope_scaling"]
        };
        own.contains_key(key) || more.contains(&key)
    }

    /// The Hugging Face class for a purpose, such as `CausalLM`.
    pub fn class_for(&self, purpose: &str) -> String {
        format!("{}For{purpose}", self.class)
    }
}

impl Architecture {
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        let json: Json = serde_json::from_str(text).map_err(|e| ModelError::Config(format!("not valid JSON: {e}")))?;
        Self::from_value(json)
    }

    /// Accepts what `config.json` holds; `family` may stand for `model_type`.
    pub fn from_value(json: Json) -> Result<Self, ModelError> {
        let Json::Object(mut object) = json else {
            return Err(ModelError::Config("the top level must be an object".into()));
        };
        let named = object.get("model_type").or_else(|| object.get("family")).and_then(Json::as_str);
        let family = Family::named(named.ok_or_else(|| ModelError::Config("`model_type` is missing".into()))?)?;
        object.retain(|key, _| key != "family" && key != "init");
        object.insert("model_type".into(), family.model_type.into());
        let described = (family.describe)(&ConfigKeys::complete(&object, family), family)?;
        let class = if described.streams() > 1 { "ConditionalGeneration" } else { "CausalLM" };
        let mut source = described.source.clone();
        if source.get("architectures").is_none() {
            source["architectures"] = Json::Array(vec![family.class_for(class).into()]);
        }
        Ok(Self { source, ..described })
    }
}
