//! Llama, and what is published as such: TinyLlama, SmolLM.

use super::decoder::{Decoder, Mlp};
use super::{ConfigKeys, Family};
use crate::{Architecture, ModelError};

pub(super) fn describe(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    let bias = keys.flag("attention_bias")?;
    let mlp = Mlp::Gated { bias: keys.flag("mlp_bias")? };
    Decoder { qkv_bias: bias, out_bias: bias, mlp, ..Decoder::new(keys)? }.build(keys, family)
}
