//! Mistral: Llama with a window in every layer.

use super::decoder::{Decoder, windows};
use super::{ConfigKeys, Family};
use crate::{Architecture, ModelError};

pub(super) fn describe(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    let decoder = Decoder::new(keys, 10_000.0)?;
    let windows = windows(keys, decoder.windows.len(), keys.count("sliding_window")?, |_| true)?;
    Decoder { windows, qkv_bias: keys.flag("attention_bias", false)?, ..decoder }.build(keys, family)
}
