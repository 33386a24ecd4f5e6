//! T5, its version 1.1 and mT5: an encoder over the source's tokens and a decoder over the target's, whose scores have
//! a learned bias by distance in place of rotary positions.

use plimsoll_graph::StreamId;
use plimsoll_graph::ops::{Activation, Heads, Mask};
use serde_json::{Value as Json, json};

use super::decoder::activation;
use super::{ConfigKeys, Family};
use crate::architecture::{
    Architecture, AttentionModule, Block, Branch, BranchClasses, Embedding, Keys, MlpModule, Module, Norm,
    PositionBias, Projection, Residual, Stack, VocabularyHead,
};
use crate::{ModelError, limits};

/// T5 scales the decoder's rows before the head unless its configuration says otherwise, in older files by untying it.
pub(super) fn describe(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    let scaled =
        keys.flag(if keys.has("scale_decoder_outputs") { "scale_decoder_outputs" } else { "tie_word_embeddings" })?;
    let shape = Shape::read(keys)?;
    let scale = if scaled { (shape.d as f32).powf(-0.5) } else { 1.0 };
    let mut model = shape.build(keys, family, scale)?;
    model.source["scale_decoder_outputs"] = json!(scaled);
    Ok(model)
}

pub(super) fn describe_multilingual(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    Shape::read(keys)?.build(keys, family, 1.0)
}

struct Shape {
    d: usize,
    f: usize,
    heads: Heads,
    eps: f32,
    /// Multiplies the standard deviations of all random weights.
    factor: f32,
    activation: Activation,
    gated: bool,
}

/// One of the two stacks.
struct Side {
    stream: StreamId,
    module: &'static str,
    prefix: &'static str,
    final_norm: &'static str,
    bias_name: &'static str,
    layers: usize,
    /// The stack whose output it also attends to.
    source: Option<StreamId>,
}

impl Shape {
    fn read(keys: &ConfigKeys) -> Result<Self, ModelError> {
        let heads = keys.required("num_heads")?;
        let (activation, gated) = feed_forward(keys.text("feed_forward_proj")?.unwrap_or_default())?;
        Ok(Self {
            d: keys.required("d_model")?,
            f: keys.required("d_ff")?,
            heads: Heads { query: heads, kv: heads, head_dim: keys.required("d_kv")? },
            eps: keys.positive("layer_norm_epsilon")? as f32,
            factor: keys.number("initializer_factor")? as f32,
            activation,
            gated,
        })
    }

    fn norm(&self, name: &'static str) -> Norm {
        Norm { name, eps: self.eps, weight: true, offset: 0.0 }
    }

    /// Random weights of a projection from so many features.
    fn std(&self, features: usize) -> f32 {
        self.factor * (features as f32).powf(-0.5)
    }

    fn attention(&self, side: &Side) -> Module {
        let (d, inner) = (self.d, self.heads.query_cols());
        let (module, name) = ("layer.0.SelfAttention", "qkv");
        // Scores are not scaled; the queries' weights are drawn smaller instead.
        let stds = vec![self.std(d * self.heads.head_dim), self.std(d), self.std(d)];
        let input =
            Projection { stds, ..Projection::new(name, module, &[("q", inner), ("k", inner), ("v", inner)], d) };
        let output = Projection { stds: vec![self.std(inner)], ..Projection::new("out", module, &[("o", d)], inner) };
        let mask = if side.source.is_some() { Mask::Causal { window: None } } else { Mask::Full };
        self.attention_module(input, output, Keys::Own, mask)
    }

    fn cross_attention(&self, stream: StreamId) -> Module {
        let (d, inner, module) = (self.d, self.heads.query_cols(), "layer.1.EncDecAttention");
        let projection = |name, layers: &[(&'static str, usize)], in_features, stds| Projection {
            stds,
            ..Projection::new(name, module, layers, in_features)
        };
        let input = projection("cross_q", &[("q", inner)], d, vec![self.std(d * self.heads.head_dim)]);
        let keys = projection("cross_kv", &[("k", inner), ("v", inner)], d, vec![self.std(d); 2]);
        let output = projection("cross_out", &[("o", d)], inner, vec![self.std(inner)]);
        self.attention_module(input, output, Keys::Stream { stream, projection: keys }, Mask::Full)
    }

    fn attention_module(&self, input: Projection, output: Projection, keys: Keys, mask: Mask) -> Module {
        let position_bias = keys == Keys::Own;
        Module::Attention(AttentionModule {
            heads: self.heads,
            input,
            output,
            keys,
            qk_norm: None,
            rotary: false,
            mask,
            scale: 1.0,
            softcap: None,
            position_bias,
        })
    }

    fn mlp(&self, module: &'static str) -> Module {
        let (d, f) = (self.d, self.f);
        let layers: &[(&'static str, usize)] = if self.gated { &[("wi_0", f), ("wi_1", f)] } else { &[("wi", f)] };
        let name = if self.gated { "gate_up" } else { "up" };
        let input = Projection { stds: vec![self.std(d); layers.len()], ..Projection::new(name, module, layers, d) };
        let output = Projection { stds: vec![self.std(f)], ..Projection::new("down", module, &[("wo", d)], f) };
        Module::Mlp(MlpModule { input, output, activation: self.activation, gated: self.gated })
    }

    fn stack(&self, keys: &ConfigKeys, side: &Side) -> Result<Stack, ModelError> {
        let branch = |norm, module, classes| Branch { norm: self.norm(norm), module, out_norm: None, classes };
        let mut branches = vec![branch("layer.0.layer_norm", self.attention(side), BranchClasses::ATTENTION)];
        let mut mlp = ("layer.1.layer_norm", "layer.1.DenseReluDense");
        if let Some(source) = side.source {
            branches.push(branch("layer.1.layer_norm", self.cross_attention(source), BranchClasses::CROSS));
            mlp = ("layer.2.layer_norm", "layer.2.DenseReluDense");
        }
        branches.push(branch(mlp.0, self.mlp(mlp.1), BranchClasses::MLP));
        Ok(Stack {
            stream: side.stream,
            module: side.module,
            prefix: side.prefix,
            blocks: vec![Block { branches, residual: Residual::Sequential }; side.layers],
            input_norm: None,
            final_norm: self.norm(side.final_norm),
            position_bias: Some(PositionBias {
                name: side.bias_name,
                heads: self.heads.query,
                buckets: keys.required("relative_attention_num_buckets")?,
                max_distance: keys.required("relative_attention_max_distance")?,
                both_ways: side.source.is_none(),
                std: self.std(self.d),
            }),
        })
    }

    fn build(self, keys: &ConfigKeys, family: &'static Family, scale: f32) -> Result<Architecture, ModelError> {
        let vocab_size = keys.required("vocab_size")?;
        let layers = keys.required("num_layers")?;
        let decoder_layers = keys.count("num_decoder_layers")?.unwrap_or(layers);
        let encoder = Side {
            stream: StreamId::SOURCE,
            module: "encoder.block",
            prefix: "encoder.",
            final_norm: "encoder.final_layer_norm",
            bias_name: "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            layers,
            source: None,
        };
        let decoder = Side {
            stream: StreamId::MAIN,
            module: "decoder.block",
            prefix: "decoder.",
            final_norm: "decoder.final_layer_norm",
            bias_name: "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            layers: decoder_layers,
            source: Some(StreamId::SOURCE),
        };
        let start = match keys.token("decoder_start_token_id", vocab_size)? {
            Some(start) => Some(start),
            None => keys.token("pad_token_id", vocab_size)?,
        };
        let resolved: [(&'static str, Json); 2] =
            [("num_decoder_layers", json!(decoder_layers)), ("decoder_start_token_id", json!(start))];
        Ok(Architecture {
            family,
            vocab_size,
            hidden_size: self.d,
            embedding: Embedding { name: "shared.weight", scale: 1.0, padding: None },
            stacks: vec![self.stack(keys, &encoder)?, self.stack(keys, &decoder)?],
            head: VocabularyHead {
                name: "lm_head.weight",
                tied: keys.flag("tie_word_embeddings")?,
                softcap: None,
                scale,
            },
            rotary: None,
            max_position: limits::COUNT_MAX as usize,
            dropout: keys.rate("dropout_rate")?,
            decoder_start: start,
            initializer_range: self.factor,
            source: keys.with(resolved),
        })
    }
}

/// The activation, and whether it is a gate's.
fn feed_forward(kind: &str) -> Result<(Activation, bool), ModelError> {
    match kind.strip_prefix("gated-") {
        // What T5 1.1 calls gelu is its approximation.
        Some("gelu") => Ok((Activation::GeluTanh, true)),
        Some(gate) => Ok((activation(gate, "feed_forward_proj")?, true)),
        None => Ok((activation(kind, "feed_forward_proj")?, false)),
    }
}
