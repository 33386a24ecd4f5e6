//! Mistral: Llama with a window in every layer.

use super::decoder::Decoder;
use super::{ConfigKeys, Family};
use crate::{Architecture, ModelError};

pub(super) fn describe(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    let decoder = Decoder::new(keys)?;
    let windows = vec![keys.count("sliding_window")?; decoder.windows.len()];
    Decoder { windows, ..decoder }.build(keys, family)
}
