//! Qwen2 and 2.5: Llama with biases of queries, keys and values. Qwen3: with normalised heads instead.

use super::decoder::{Decoder, windows};
use super::{ConfigKeys, Family};
use crate::architecture::QkNorm;
use crate::{Architecture, ModelError};

fn qwen(keys: &ConfigKeys) -> Result<Decoder, ModelError> {
    let decoder = Decoder::new(keys)?;
    // Files carry a window that is switched off unless they say otherwise.
    let window = if keys.flag("use_sliding_window")? { keys.count("sliding_window")? } else { None };
    let first = if window.is_some() { keys.number("max_window_layers")? } else { 0.0 };
    let windows = windows(keys, decoder.windows.len(), window, |layer| layer as f64 >= first)?;
    Ok(Decoder { windows, ..decoder })
}

pub(super) fn describe_2(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    Decoder { qkv_bias: true, ..qwen(keys)? }.build(keys, family)
}

pub(super) fn describe_3(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    let (bias, decoder) = (keys.flag("attention_bias")?, qwen(keys)?);
    let norm = QkNorm { eps: decoder.norm_eps, weight: true, offset: 0.0, after_rotary: false };
    Decoder { qkv_bias: bias, out_bias: bias, qk_norm: Some(norm), ..decoder }.build(keys, family)
}
