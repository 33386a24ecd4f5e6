//! What llama.cpp computes for each of its architectures, and whether that is what a model needs.
//!
//! A file names an architecture and gives its sizes; much else (the activation, where biases are, which layers have a
//! window) is part of llama.cpp's code. A model that differs there would load and compute something else.

use plimsoll_graph::ops::{Activation, Mask};
use plimsoll_models::{Architecture, AttentionModule, MlpModule, Module, RopeScaling};

use super::format::{Item, Keys};

/// An architecture of llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// Its name, which keys begin with.
    pub name: &'static str,
    /// Whether heads are rotated in neighbouring pairs.
    pub pairs: bool,
    biases: Biases,
    /// Whether it reads factors of its own for each rotary frequency.
    rope_factors: bool,
    is_gemma2: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Biases {
    None,
    OfQueries,
    All,
}

const PLAIN: Target = Target { name: "", pairs: false, biases: Biases::None, rope_factors: false, is_gemma2: false };
const LLAMA: Target = Target { name: "llama", pairs: true, biases: Biases::All, rope_factors: true, ..PLAIN };

/// By `model_type`. Mistral is Llama's architecture there.
const TARGETS: [(&str, Target); 5] = [
    ("llama", LLAMA),
    ("mistral", LLAMA),
    ("qwen2", Target { name: "qwen2", biases: Biases::OfQueries, ..PLAIN }),
    ("qwen3", Target { name: "qwen3", ..PLAIN }),
    ("gemma2", Target { name: "gemma2", is_gemma2: true, ..PLAIN }),
];

/// Layers of the Gemma 2 whose scores are scaled by the width of the model's heads and not by that of its queries.
const GEMMA2_27B_LAYERS: usize = 46;

impl Target {
    /// The architecture for a model, or why there is none.
    pub fn of(model: &Architecture) -> Result<Self, String> {
        let family = model.family.model_type;
        let Some((_, target)) = TARGETS.iter().find(|(name, _)| *name == family) else {
            let known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            return Err(format!("{family} models cannot be written for llama.cpp; {} can", known.join(", ")));
        };
        let class = model.source["architectures"][0].as_str().unwrap_or_default();
        if class != model.family.class_for("CausalLM") {
            return Err(format!("a {class} cannot be written for llama.cpp, only models that make text"));
        }
        target.check(model)?;
        Ok(*target)
    }

    fn check(&self, model: &Architecture) -> Result<(), String> {
        let cannot = |what: String| Err(format!("llama.cpp's architecture {} has {what}", self.name));
        for (_, index, _, block) in model.blocks() {
            for branch in &block.branches {
                match &branch.module {
                    Module::Attention(attention) => self.check_attention(model, index, attention),
                    Module::Mlp(mlp) => self.check_mlp(mlp),
                }
                .or_else(|what| cannot(format!("{what} (layer {index})")))?;
            }
        }
        if self.is_gemma2 && !model.head.tied {
            return cannot("no head beside the embedding".to_owned());
        }
        if self.is_gemma2 && model.head.softcap.is_none() {
            return cannot("always a soft cap of logits".to_owned());
        }
        let scaling = model.rotary.map_or(RopeScaling::None, |rotary| rotary.scaling);
        if matches!(scaling, RopeScaling::Llama3 { .. }) && !self.rope_factors {
            return cannot("no rope scaling of the kind llama3".to_owned());
        }
        Ok(())
    }

    fn check_attention(&self, model: &Architecture, layer: usize, attention: &AttentionModule) -> Result<(), String> {
        let (input, output) = match self.biases {
            Biases::All => (true, true),
            Biases::OfQueries => (true, false),
            Biases::None => (false, false),
        };
        if attention.input.bias && !input || attention.output.bias && !output {
            return Err("no biases there".to_owned());
        }
        let width = match self.is_gemma2 && model.stacks[0].blocks.len() == GEMMA2_27B_LAYERS {
            true => model.hidden_size / attention.heads.query,
            false => attention.heads.head_dim,
        };
        if (attention.scale * (width as f32).sqrt() - 1.0).abs() > 1e-5 {
            return Err(format!("scores scaled by 1/sqrt({width}), this model's by {}", attention.scale));
        }
        if self.is_gemma2 {
            if attention.softcap.is_none() {
                return Err("always a soft cap of scores".to_owned());
            }
            let Mask::Causal { window } = attention.mask else { return Err("causal attention".to_owned()) };
            if window.is_some() != layer.is_multiple_of(2) {
                return Err("a window in every other layer from the first on".to_owned());
            }
        }
        Ok(())
    }

    fn check_mlp(&self, mlp: &MlpModule) -> Result<(), String> {
        let activation = if self.is_gemma2 { Activation::GeluTanh } else { Activation::Silu };
        if mlp.activation != activation {
            return Err(format!("the activation {activation:?}, this model {:?}", mlp.activation));
        }
        if (mlp.input.bias || mlp.output.bias) && self.biases != Biases::All {
            return Err("no biases in the MLP".to_owned());
        }
        Ok(())
    }

    /// A window that llama.cpp does not apply: beyond it, texts are computed otherwise.
    pub fn window_left_out(&self, model: &Architecture) -> Option<usize> {
        let windows =
            model.blocks().flat_map(|(_, _, _, block)| &block.branches).filter_map(|branch| match &branch.module {
                Module::Attention(AttentionModule { mask: Mask::Causal { window }, .. }) => *window,
                _ => None,
            });
        windows.min().filter(|_| !self.is_gemma2)
    }

    /// The sizes of the model.
    pub fn describe(&self, model: &Architecture, keys: &mut Keys) {
        let mut put = |key: &str, item: Item<'_>| keys.put(&format!("{}.{key}", self.name), item);
        let modules = || model.blocks().flat_map(|(_, _, _, block)| &block.branches).map(|branch| &branch.module);
        put("block_count", Item::Count(model.blocks().count()));
        put("context_length", Item::Count(model.max_position));
        put("embedding_length", Item::Count(model.hidden_size));
        put("vocab_size", Item::Count(model.vocab_size));
        put("attention.layer_norm_rms_epsilon", Item::Number(model.stacks[0].final_norm.eps));
        if let Some(mlp) = modules().find_map(|module| if let Module::Mlp(mlp) = module { Some(mlp) } else { None }) {
            put("feed_forward_length", Item::Count(mlp.output.in_features));
        }
        let attention =
            modules().find_map(|m| if let Module::Attention(attention) = m { Some(attention) } else { None });
        if let Some(attention) = attention {
            put("attention.head_count", Item::Count(attention.heads.query));
            put("attention.head_count_kv", Item::Count(attention.heads.kv));
            put("attention.key_length", Item::Count(attention.heads.head_dim));
            put("attention.value_length", Item::Count(attention.heads.head_dim));
            if let Mask::Causal { window: Some(window) } = attention.mask {
                put("attention.sliding_window", Item::Count(window));
            }
            if let Some(cap) = attention.softcap {
                put("attn_logit_softcapping", Item::Number(cap));
            }
        }
        if let Some(cap) = model.head.softcap {
            put("final_logit_softcapping", Item::Number(cap));
        }
        if let Some(rotary) = &model.rotary {
            put("rope.dimension_count", Item::Count(rotary.dims));
            put("rope.freq_base", Item::Number(rotary.theta as f32));
            if let RopeScaling::Linear { factor } = rotary.scaling {
                put("rope.scaling.type", Item::Text("linear"));
                put("rope.scaling.factor", Item::Number(factor as f32));
            }
        }
    }
}
