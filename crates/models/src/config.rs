//! A decoder's shape, read from Hugging Face's `config.json`.

use plimsoll_graph::ops::{Activation, Heads};
use serde_json::Value as Json;

use crate::ModelError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    pub fn from_model_type(name: &str) -> Result<Self, ModelError> {
        match name {
            "llama" => Ok(Family::Llama),
            "mistral" => Ok(Family::Mistral),
            "qwen2" => Ok(Family::Qwen2),
            "qwen3" => Ok(Family::Qwen3),
            other => Err(ModelError::Family(other.to_owned())),
        }
    }

    pub fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }

    /// The class that Hugging Face loads such a model with a score head as.
    pub fn score_architecture(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForSequenceClassification",
            Family::Mistral => "MistralForSequenceClassification",
            Family::Qwen2 => "Qwen2ForSequenceClassification",
            Family::Qwen3 => "Qwen3ForSequenceClassification",
        }
    }

    fn architecture(self) -> &'static str {
        match self {
            Family::Llama => "LlamaForCausalLM",
            Family::Mistral => "MistralForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
        }
    }
}

/// How rotary frequencies are stretched beyond the length a model was pretrained on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    None,
    Linear { factor: f64 },
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_position: f64 },
}

#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    pub family: Family,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub layers: usize,
    pub heads: Heads,
    pub intermediate_size: usize,
    pub norm_eps: f32,
    pub rope_theta: f64,
    pub rope_scaling: RopeScaling,
    pub max_position: usize,
    /// Attention window of each layer.
    pub windows: Vec<Option<usize>>,
    pub tied: bool,
    pub qkv_bias: bool,
    pub out_bias: bool,
    pub mlp_bias: bool,
    pub qk_norm: bool,
    pub activation: Activation,
    pub initializer_range: f32,
    /// What was read, to be written back beside the trained weights.
    pub source: Json,
}

/// Typed access to the keys of a JSON object, with errors that name the key.
struct Keys<'a>(&'a serde_json::Map<String, Json>);

impl Keys<'_> {
    fn present(&self, key: &str) -> Option<&Json> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        match self.present(key) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(n) if n > 0 => Ok(Some(n as usize)),
                _ => Err(ModelError::Config(format!("`{key}` must be a positive whole number, found {value}"))),
            },
        }
    }

    fn required(&self, key: &str) -> Result<usize, ModelError> {
        self.count(key)?.ok_or_else(|| ModelError::Config(format!("`{key}` is missing")))
    }

    fn number(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        match self.present(key) {
            None => Ok(default),
            Some(value) => {
                value.as_f64().ok_or_else(|| ModelError::Config(format!("`{key}` must be a number, found {value}")))
            }
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        match self.present(key) {
            None => Ok(default),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| ModelError::Config(format!("`{key}` must be true or false, found {value}"))),
        }
    }
}

impl DecoderConfig {
    pub fn from_json(text: &str) -> Result<Self, ModelError> {
        let json: Json = serde_json::from_str(text).map_err(|e| ModelError::Config(format!("not valid JSON: {e}")))?;
        Self::from_value(json)
    }

    /// Accepts what `config.json` holds; `family` may stand for `model_type`.
    pub fn from_value(json: Json) -> Result<Self, ModelError> {
        let Json::Object(object) = &json else {
            return Err(ModelError::Config("the top level must be an object".into()));
        };
        let keys = Keys(object);
        let model_type = keys
            .present("model_type")
            .or_else(|| keys.present("family"))
            .and_then(Json::as_str)
            .ok_or_else(|| ModelError::Config("`model_type` is missing".into()))?;
        let family = Family::from_model_type(model_type)?;
        let hidden_size = keys.required("hidden_size")?;
        let query = keys.required("num_attention_heads")?;
        let kv = keys.count("num_key_value_heads")?.unwrap_or(query);
        let head_dim = keys.count("head_dim")?.unwrap_or(hidden_size / query);
        let layers = keys.required("num_hidden_layers")?;
        if query % kv != 0 {
            return Err(ModelError::Config(format!(
                "{query} attention heads cannot share {kv} key-value heads evenly"
            )));
        }
        if head_dim == 0 || head_dim % 2 != 0 {
            return Err(ModelError::Config(format!("`head_dim` must be even and positive, found {head_dim}")));
        }
        let (rope_theta, rope_scaling) = rope(&keys, family)?;
        let attention_bias = keys.flag("attention_bias", false)?;
        Ok(Self {
            family,
            vocab_size: keys.required("vocab_size")?,
            hidden_size,
            layers,
            heads: Heads { query, kv, head_dim },
            intermediate_size: keys.required("intermediate_size")?,
            norm_eps: keys.number("rms_norm_eps", 1e-6)? as f32,
            rope_theta,
            rope_scaling,
            max_position: keys.count("max_position_embeddings")?.unwrap_or(32_768),
            windows: windows(&keys, family, layers)?,
            tied: keys.flag("tie_word_embeddings", false)?,
            qkv_bias: family == Family::Qwen2 || attention_bias,
            out_bias: matches!(family, Family::Llama | Family::Qwen3) && attention_bias,
            mlp_bias: keys.flag("mlp_bias", false)?,
            qk_norm: family == Family::Qwen3,
            activation: activation(&keys)?,
            initializer_range: keys.number("initializer_range", 0.02)? as f32,
            source: with_family_names(&json, family),
        })
    }

    /// Parameters of the whole model, tied weights counted once.
    pub fn parameter_count(&self) -> usize {
        let (d, f) = (self.hidden_size, self.intermediate_size);
        let qkv = self.heads.fused_cols();
        let out = self.heads.query_cols();
        let biases = usize::from(self.qkv_bias) * qkv
            + usize::from(self.out_bias) * d
            + usize::from(self.mlp_bias) * (2 * f + d);
        let norms = 2 * d + usize::from(self.qk_norm) * 2 * self.heads.head_dim;
        let layer = qkv * d + out * d + 3 * f * d + biases + norms;
        let tables = if self.tied { 1 } else { 2 };
        self.layers * layer + tables * self.vocab_size * d + d
    }
}

fn with_family_names(json: &Json, family: Family) -> Json {
    let mut object = json.as_object().cloned().unwrap_or_default();
    object.remove("family");
    object.remove("init");
    object.insert("model_type".into(), family.model_type().into());
    object.entry("architectures").or_insert_with(|| Json::Array(vec![family.architecture().into()]));
    Json::Object(object)
}

fn activation(keys: &Keys) -> Result<Activation, ModelError> {
    match keys.present("hidden_act").and_then(Json::as_str).unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        other => Err(ModelError::Config(format!(
            "`hidden_act: {other}` is not supported; use silu, gelu or gelu_pytorch_tanh"
        ))),
    }
}

/// Frequencies: `rope_theta` and `rope_scaling` in older files, both inside `rope_parameters` in newer ones.
fn rope(keys: &Keys, family: Family) -> Result<(f64, RopeScaling), ModelError> {
    let default_theta = if matches!(family, Family::Qwen2 | Family::Qwen3) { 1_000_000.0 } else { 10_000.0 };
    let mut theta = keys.number("rope_theta", default_theta)?;
    let nested = keys.present("rope_parameters").or_else(|| keys.present("rope_scaling"));
    let Some(nested) = nested else { return Ok((theta, RopeScaling::None)) };
    let Json::Object(object) = nested else {
        return Err(ModelError::Config(format!("`rope_scaling` must be an object, found {nested}")));
    };
    let rope = Keys(object);
    theta = rope.number("rope_theta", theta)?;
    let kind = rope.present("rope_type").or_else(|| rope.present("type")).and_then(Json::as_str).unwrap_or("default");
    let factor = rope.number("factor", 1.0)?;
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor },
        "llama3" => RopeScaling::Llama3 {
            factor,
            low_freq_factor: rope.number("low_freq_factor", 1.0)?,
            high_freq_factor: rope.number("high_freq_factor", 4.0)?,
            original_max_position: rope.number("original_max_position_embeddings", 8192.0)?,
        },
        other => {
            return Err(ModelError::Config(format!(
                "rope scaling `{other}` is not supported; use default, linear or llama3"
            )));
        }
    };
    Ok((theta, scaling))
}

/// Qwen files carry a window that is switched off unless they say otherwise; newer files list each layer's kind.
fn windows(keys: &Keys, family: Family, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    let window = keys.count("sliding_window")?;
    let qwen = matches!(family, Family::Qwen2 | Family::Qwen3);
    if family == Family::Llama || (qwen && !keys.flag("use_sliding_window", false)?) {
        return Ok(vec![None; layers]);
    }
    if let Some(Json::Array(kinds)) = keys.present("layer_types") {
        if kinds.len() != layers {
            return Err(ModelError::Config(format!(
                "`layer_types` lists {} layers, the model has {layers}",
                kinds.len()
            )));
        }
        return Ok(kinds.iter().map(|k| window.filter(|_| k.as_str() == Some("sliding_attention"))).collect());
    }
    let first = if qwen { keys.number("max_window_layers", 0.0)? as usize } else { 0 };
    Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
}
