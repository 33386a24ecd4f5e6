//! What Llama and the families that follow it have in common: one stack of blocks with attention and a gated MLP, under
//! the same names.

use plimsoll_graph::StreamId;
use plimsoll_graph::ops::{Activation, Heads, Mask};
use serde_json::Value as Json;

use super::{ConfigKeys, Family};
use crate::ModelError;
use crate::architecture::{
    Architecture, AttentionModule, Block, Branch, BranchClasses, Embedding, Keys, MlpModule, Module, Norm, Projection,
    QkNorm, Residual, Stack, VocabularyHead,
};
use crate::rotary::{RopeScaling, Rotary};

/// Where such families differ. A family begins with what Llama has and changes what it has otherwise.
pub(super) struct Decoder {
    pub(super) heads: Heads,
    /// Attention window of each layer.
    pub(super) windows: Vec<Option<usize>>,
    pub(super) qkv_bias: bool,
    pub(super) out_bias: bool,
    pub(super) mlp_bias: bool,
    pub(super) qk_norm: Option<QkNorm>,
    pub(super) activation: Activation,
    /// What is multiplied with `q·k`.
    pub(super) scale: f32,
    /// Of attention scores, and of logits.
    pub(super) attention_softcap: Option<f32>,
    pub(super) logit_softcap: Option<f32>,
    pub(super) embedding_scale: f32,
    /// Norms before attention, behind it, before the MLP, behind it.
    pub(super) norms: [Option<&'static str>; 4],
    pub(super) norm_eps: f32,
    pub(super) norm_offset: f32,
    pub(super) rotary: Rotary,
    pub(super) tied: bool,
    pub(super) max_position: usize,
}

impl Decoder {
    /// What Llama's configuration says, with the default of `rope_theta` that its family has.
    pub(super) fn new(keys: &ConfigKeys, default_theta: f64) -> Result<Self, ModelError> {
        let hidden_size = keys.required("hidden_size")?;
        let query = keys.required("num_attention_heads")?;
        let kv = keys.count("num_key_value_heads")?.unwrap_or(query);
        let head_dim = keys.count("head_dim")?.unwrap_or(hidden_size / query);
        if query % kv != 0 {
            return Err(ModelError::Config(format!(
                "{query} attention heads cannot share {kv} key-value heads evenly"
            )));
        }
        if head_dim == 0 || head_dim % 2 != 0 {
            return Err(ModelError::Config(format!("`head_dim` must be even and positive, found {head_dim}")));
        }
        let (theta, scaling) = rope(keys, default_theta)?;
        Ok(Self {
            heads: Heads { query, kv, head_dim },
            windows: vec![None; keys.required("num_hidden_layers")?],
            qkv_bias: false,
            out_bias: false,
            mlp_bias: keys.flag("mlp_bias", false)?,
            qk_norm: None,
            activation: activation(keys, "hidden_act", "silu")?,
            scale: 1.0 / (head_dim as f32).sqrt(),
            attention_softcap: None,
            logit_softcap: None,
            embedding_scale: 1.0,
            norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
            norm_eps: keys.number("rms_norm_eps", 1e-6)? as f32,
            norm_offset: 0.0,
            rotary: Rotary { dims: head_dim, theta, scaling },
            tied: keys.flag("tie_word_embeddings", false)?,
            max_position: keys.count("max_position_embeddings")?.unwrap_or(32_768),
        })
    }

    fn norm(&self, name: &'static str) -> Norm {
        Norm { name, eps: self.norm_eps, weight: true, offset: self.norm_offset }
    }

    fn attention(&self, d: usize, window: Option<usize>) -> Module {
        let (q, kv) = (self.heads.query_cols(), self.heads.kv_cols());
        let projection =
            |name, layers, in_features, bias| Projection { name, module: "self_attn", layers, in_features, bias };
        Module::Attention(AttentionModule {
            heads: self.heads,
            input: projection("qkv", vec![("q_proj", q), ("k_proj", kv), ("v_proj", kv)], d, self.qkv_bias),
            output: projection("out", vec![("o_proj", d)], q, self.out_bias),
            keys: Keys::Own,
            qk_norm: self.qk_norm,
            rotary: true,
            mask: Mask::Causal { window },
            scale: self.scale,
            softcap: self.attention_softcap,
        })
    }

    fn mlp(&self, d: usize, f: usize) -> Module {
        let projection =
            |name, layers, in_features| Projection { name, module: "mlp", layers, in_features, bias: self.mlp_bias };
        Module::Mlp(MlpModule {
            input: projection("gate_up", vec![("gate_proj", f), ("up_proj", f)], d),
            output: projection("down", vec![("down_proj", d)], f),
            activation: self.activation,
            gated: true,
        })
    }

    pub(super) fn build(self, keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
        let (d, f) = (keys.required("hidden_size")?, keys.required("intermediate_size")?);
        let branch = |before: Option<&'static str>, module, after: Option<&'static str>, classes| Branch {
            norm: before.map_or(Norm { weight: false, ..self.norm("") }, |name| self.norm(name)),
            module,
            out_norm: after.map(|name| self.norm(name)),
            classes,
        };
        let [before_attention, after_attention, before_mlp, after_mlp] = self.norms;
        let block = |&window: &Option<usize>| Block {
            branches: vec![
                branch(before_attention, self.attention(d, window), after_attention, BranchClasses::ATTENTION),
                branch(before_mlp, self.mlp(d, f), after_mlp, BranchClasses::MLP),
            ],
            residual: Residual::Sequential,
        };
        Ok(Architecture {
            family,
            vocab_size: keys.required("vocab_size")?,
            hidden_size: d,
            embedding: Embedding { name: "model.embed_tokens.weight", scale: self.embedding_scale },
            stacks: vec![Stack {
                stream: StreamId::MAIN,
                module: "model.layers",
                prefix: "",
                blocks: self.windows.iter().map(block).collect(),
                input_norm: None,
                final_norm: self.norm("model.norm"),
            }],
            head: VocabularyHead { name: "lm_head.weight", tied: self.tied, softcap: self.logit_softcap },
            rotary: Some(self.rotary),
            max_position: self.max_position,
            initializer_range: keys.number("initializer_range", 0.02)? as f32,
            source: Json::Null,
        })
    }
}

pub(super) fn activation(keys: &ConfigKeys, key: &str, default: &str) -> Result<Activation, ModelError> {
    match keys.text(key).unwrap_or(default) {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        other => {
            Err(ModelError::Config(format!("`{key}: {other}` is not supported; use silu, gelu or gelu_pytorch_tanh")))
        }
    }
}

/// Frequencies: `rope_theta` and `rope_scaling` in older files, both inside `rope_parameters` in newer ones.
fn rope(keys: &ConfigKeys, default_theta: f64) -> Result<(f64, RopeScaling), ModelError> {
    let theta = keys.number("rope_theta", default_theta)?;
    let nested = match keys.section("rope_parameters")? {
        Some(nested) => Some(nested),
        None => keys.section("rope_scaling")?,
    };
    let Some(rope) = nested else { return Ok((theta, RopeScaling::None)) };
    let theta = rope.number("rope_theta", theta)?;
    let kind = rope.text("rope_type").or_else(|| rope.text("type")).unwrap_or("default");
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

/// The window of each layer: as `layer_types` says, else of those that are `windowed`.
pub(super) fn windows(
    keys: &ConfigKeys,
    layers: usize,
    window: Option<usize>,
    windowed: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, ModelError> {
    let Some(Json::Array(kinds)) = keys.present("layer_types") else {
        return Ok((0..layers).map(|layer| window.filter(|_| windowed(layer))).collect());
    };
    if kinds.len() != layers {
        let listed = kinds.len();
        return Err(ModelError::Config(format!("`layer_types` lists {listed} layers, the model has {layers}")));
    }
    Ok(kinds.iter().map(|kind| window.filter(|_| kind.as_str() == Some("sliding_attention"))).collect())
}
