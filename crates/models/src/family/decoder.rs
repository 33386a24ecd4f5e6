//! What Llama and the families that follow it have in common: one stack of blocks with attention and an MLP, under
//! the same names.

use plimsoll_graph::StreamId;
use plimsoll_graph::ops::{Activation, Heads, Mask};
use serde_json::{Value as Json, json};

use super::rope::{rope, rope_keys};
use super::{ConfigKeys, Family};
use crate::ModelError;
use crate::architecture::{
    Architecture, AttentionModule, Block, Branch, BranchClasses, Embedding, Keys, MlpModule, Module, Norm, Projection,
    QkNorm, Residual, Stack, VocabularyHead,
};
use crate::rotary::Rotary;

/// Where such families differ. A family begins with what Llama has and changes what it has otherwise.
pub(super) struct Decoder {
    pub(super) heads: Heads,
    /// Attention window of each layer.
    pub(super) windows: Vec<Option<usize>>,
    pub(super) qkv_bias: bool,
    pub(super) out_bias: bool,
    pub(super) mlp: Mlp,
    pub(super) qk_norm: Option<QkNorm>,
    pub(super) activation: Activation,
    /// What is multiplied with `q·k`.
    pub(super) scale: f32,
    /// Of attention scores, and of logits.
    pub(super) attention_softcap: Option<f32>,
    pub(super) logit_softcap: Option<f32>,
    pub(super) embedding_scale: f32,
    /// Whether the embedded tokens are normalised before the first block.
    pub(super) normed_embedding: bool,
    /// Norms before attention, behind it, before the MLP, behind it.
    pub(super) norms: [Option<&'static str>; 4],
    pub(super) norm_eps: f32,
    /// Whether norms have learned factors.
    pub(super) norm_weight: bool,
    pub(super) norm_offset: f32,
    /// Standard deviation of random weights of attention's output, where it is not that of all others.
    pub(super) out_std: Option<f32>,
    pub(super) rotary: Rotary,
    pub(super) tied: bool,
}

/// The MLP's matrices.
pub(super) enum Mlp {
    /// `gate_proj`, `up_proj` and `down_proj`.
    Gated { bias: bool },
    /// Two of these names.
    Plain { up: &'static str, down: &'static str },
}

impl Decoder {
    /// What a configuration says in Llama's words.
    pub(super) fn new(keys: &ConfigKeys) -> Result<Self, ModelError> {
        let hidden_size = keys.required("hidden_size")?;
        let query = keys.required("num_attention_heads")?;
        let kv = keys.count("num_key_value_heads")?.unwrap_or(query);
        let head_dim = keys.count("head_dim")?.unwrap_or(hidden_size / query);
        if query % kv != 0 {
            return Err(ModelError::Config(format!(
                "{query} attention heads cannot share {kv} key-value heads evenly; set `num_key_value_heads`"
            )));
        }
        if head_dim == 0 || head_dim % 2 != 0 {
            return Err(ModelError::Config(format!("`head_dim` must be even and positive, found {head_dim}")));
        }
        keys.refuse_dropout("attention_dropout")?;
        let (theta, scaling) = rope(keys)?;
        Ok(Self {
            heads: Heads { query, kv, head_dim },
            windows: vec![None; keys.required("num_hidden_layers")?],
            qkv_bias: false,
            out_bias: false,
            mlp: Mlp::Gated { bias: false },
            qk_norm: None,
            activation: activation(keys.text("hidden_act")?.unwrap_or("silu"), "hidden_act")?,
            scale: 1.0 / (head_dim as f32).sqrt(),
            attention_softcap: None,
            logit_softcap: None,
            embedding_scale: 1.0,
            normed_embedding: false,
            norms: [Some("input_layernorm"), None, Some("post_attention_layernorm"), None],
            norm_eps: keys.positive("rms_norm_eps")? as f32,
            norm_weight: true,
            norm_offset: 0.0,
            out_std: None,
            rotary: Rotary { dims: head_dim, theta, scaling, reversed: false },
            tied: keys.flag("tie_word_embeddings")?,
        })
    }

    fn norm(&self, name: &'static str) -> Norm {
        Norm { name, eps: self.norm_eps, weight: self.norm_weight, offset: self.norm_offset }
    }

    fn attention(&self, d: usize, window: Option<usize>) -> Module {
        let (q, kv) = (self.heads.query_cols(), self.heads.kv_cols());
        let input = Projection {
            bias: self.qkv_bias,
            ..Projection::new("qkv", "self_attn", &[("q_proj", q), ("k_proj", kv), ("v_proj", kv)], d)
        };
        let output = Projection {
            bias: self.out_bias,
            stds: self.out_std.into_iter().collect(),
            ..Projection::new("out", "self_attn", &[("o_proj", d)], q)
        };
        Module::Attention(AttentionModule {
            heads: self.heads,
            input,
            output,
            keys: Keys::Own,
            qk_norm: self.qk_norm,
            rotary: true,
            mask: Mask::Causal { window },
            scale: self.scale,
            softcap: self.attention_softcap,
            position_bias: false,
        })
    }

    fn mlp(&self, d: usize, f: usize) -> Module {
        let (input, output, bias) = match self.mlp {
            Mlp::Gated { bias } => (
                Projection::new("gate_up", "mlp", &[("gate_proj", f), ("up_proj", f)], d),
                Projection::new("down", "mlp", &[("down_proj", d)], f),
                bias,
            ),
            Mlp::Plain { up, down } => {
                (Projection::new("up", "mlp", &[(up, f)], d), Projection::new("down", "mlp", &[(down, d)], f), false)
            }
        };
        Module::Mlp(MlpModule {
            input: Projection { bias, ..input },
            output: Projection { bias, ..output },
            activation: self.activation,
            gated: matches!(self.mlp, Mlp::Gated { .. }),
        })
    }

    pub(super) fn build(self, keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
        let (d, f) = (keys.required("hidden_size")?, keys.required("intermediate_size")?);
        let vocab_size = keys.required("vocab_size")?;
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
            vocab_size,
            hidden_size: d,
            embedding: Embedding {
                name: "model.embed_tokens.weight",
                scale: self.embedding_scale,
                padding: keys.token("pad_token_id", vocab_size)?,
            },
            stacks: vec![Stack {
                stream: StreamId::MAIN,
                module: "model.layers",
                prefix: "",
                blocks: self.windows.iter().map(block).collect(),
                input_norm: self.normed_embedding.then(|| self.norm("model.embed_norm")),
                final_norm: self.norm("model.norm"),
                position_bias: None,
            }],
            head: VocabularyHead { name: "lm_head.weight", tied: self.tied, softcap: self.logit_softcap, scale: 1.0 },
            rotary: Some(self.rotary),
            max_position: keys.required("max_position_embeddings")?,
            dropout: 0.0,
            decoder_start: None,
            initializer_range: keys.number("initializer_range")? as f32,
            source: keys.with(self.resolved(keys)),
        })
    }

    /// The keys whose values are not those given, or of which there are two spellings.
    fn resolved(&self, keys: &ConfigKeys) -> Vec<(&'static str, Json)> {
        let Heads { kv, head_dim, .. } = self.heads;
        let mut resolved = vec![("num_key_value_heads", json!(kv)), ("head_dim", json!(head_dim))];
        resolved.extend(rope_keys(self.rotary.theta, self.rotary.scaling));
        if keys.has("layer_types") {
            let kind = |window: &Option<usize>| if window.is_some() { "sliding_attention" } else { "full_attention" };
            resolved.push(("layer_types", self.windows.iter().map(kind).collect()));
        }
        if keys.present("use_sliding_window") == Some(&Json::Bool(false)) {
            resolved.push(("sliding_window", Json::Null));
        }
        resolved
    }
}

/// The activation of that name, which stands under a key.
pub(super) fn activation(name: &str, key: &str) -> Result<Activation, ModelError> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        "relu2" => Ok(Activation::Relu2),
        other => Err(ModelError::Config(format!(
            "`{key}: {other}` is not supported; use silu, gelu, gelu_pytorch_tanh, relu or relu2"
        ))),
    }
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
    let of = |kind: &Json| match (kind.as_str(), window) {
        (Some("full_attention"), _) => Ok(None),
        (Some("sliding_attention"), Some(window)) => Ok(Some(window)),
        (Some("sliding_attention"), None) => Err(ModelError::Config(
            "`layer_types` has sliding_attention, but no window applies; set `sliding_window`".to_owned(),
        )),
        _ => Err(ModelError::Config(format!(
            "`layer_types` has {kind}, which is not supported; use full_attention or sliding_attention"
        ))),
    };
    kinds.iter().map(of).collect()
}
