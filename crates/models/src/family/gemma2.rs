//! Gemma 2: norms before and behind each module whose factors are stored as their distance from one, soft caps on scores
//! and logits, a window in every other layer, embeddings scaled by √d.

use super::decoder::{Decoder, activation, windows};
use super::{ConfigKeys, Family};
use crate::{Architecture, ModelError};

pub(super) fn describe(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    if keys.present("use_bidirectional_attention").and_then(serde_json::Value::as_bool) == Some(true) {
        return Err(ModelError::Config("`use_bidirectional_attention: true` is not supported".to_owned()));
    }
    let decoder = Decoder::new(keys)?;
    let window = keys.count("sliding_window")?;
    let windows = windows(keys, decoder.windows.len(), window, |layer| layer % 2 == 0)?;
    let bias = keys.flag("attention_bias")?;
    let softcap = |key| keys.optional_positive(key).map(|cap| cap.map(|cap| cap as f32));
    Decoder {
        windows,
        qkv_bias: bias,
        out_bias: bias,
        activation: activation(keys.text("hidden_activation")?.unwrap_or_default(), "hidden_activation")?,
        scale: 1.0 / (keys.positive("query_pre_attn_scalar")? as f32).sqrt(),
        attention_softcap: softcap("attn_logit_softcapping")?,
        logit_softcap: softcap("final_logit_softcapping")?,
        embedding_scale: (keys.required("hidden_size")? as f32).sqrt(),
        norms: [
            Some("input_layernorm"),
            Some("post_attention_layernorm"),
            Some("pre_feedforward_layernorm"),
            Some("post_feedforward_layernorm"),
        ],
        norm_offset: 1.0,
        ..decoder
    }
    .build(keys, family)
}
