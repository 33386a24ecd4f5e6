//! Llama, and what is published as such: TinyLlama, SmolLM.

use super::decoder::Decoder;
use super::{ConfigKeys, Family};
use crate::{Architecture, ModelError};

pub(super) fn describe(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    let bias = keys.flag("attention_bias", false)?;
    Decoder { qkv_bias: bias, out_bias: bias, ..Decoder::new(keys, 10_000.0)? }.build(keys, family)
}
