//! Gemma 2: norms before and behind each module whose factors are stored as their distance from one, soft caps on scores
//! and logits, a window in every other layer, embeddings scaled by √d.

use super::decoder::{Decoder, activation, windows};
use super::{ConfigKeys, Family};
use crate::{Architecture, ModelError};

pub(super) fn describe(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    let decoder = Decoder::new(keys, 10_000.0)?;
    let window = Some(keys.count("sliding_window")?.unwrap_or(4096));
    let windows = windows(keys, decoder.windows.len(), window, |layer| layer % 2 == 0)?;
    let bias = keys.flag("attention_bias", false)?;
    let softcap = |key, default: f64| match keys.0.get(key) {
        // Written as null where there is none.
        Some(serde_json::Value::Null) => Ok(None),
        _ => keys.number(key, default).map(|cap| Some(cap as f32)),
    };
    Decoder {
        windows,
        qkv_bias: bias,
        out_bias: bias,
        activation: activation(keys, "hidden_activation", "gelu_pytorch_tanh")?,
        scale: 1.0 / (keys.number("query_pre_attn_scalar", 256.0)? as f32).sqrt(),
        attention_softcap: softcap("attn_logit_softcapping", 50.0)?,
        logit_softcap: softcap("final_logit_softcapping", 30.0)?,
        embedding_scale: (keys.required("hidden_size")? as f32).sqrt(),
        norms: [
            Some("input_layernorm"),
            Some("post_attention_layernorm"),
            Some("pre_feedforward_layernorm"),
            Some("post_feedforward_layernorm"),
        ],
        norm_offset: 1.0,
        tied: keys.flag("tie_word_embeddings", true)?,
        ..decoder
    }
    .build(keys, family)
}
