//! nanochat: norms without factors, one of them of the embedded tokens; heads rotated before they are normalised, and by
//! the opposite angle; an MLP of two matrices with relu²; soft-capped logits.

use super::decoder::{Decoder, Mlp};
use super::{ConfigKeys, Family};
use crate::architecture::QkNorm;
use crate::rotary::Rotary;
use crate::{Architecture, ModelError};

pub(super) fn describe(keys: &ConfigKeys, family: &'static Family) -> Result<Architecture, ModelError> {
    let bias = keys.flag("attention_bias")?;
    let decoder = Decoder::new(keys)?;
    let layers = keys.required("num_hidden_layers")? as f32;
    let norm = QkNorm { eps: decoder.norm_eps, weight: false, offset: 0.0, after_rotary: true };
    Decoder {
        qkv_bias: bias,
        out_bias: bias,
        mlp: Mlp::Plain { up: "fc1", down: "fc2" },
        qk_norm: Some(norm),
        logit_softcap: keys.optional_positive("final_logit_softcapping")?.map(|cap| cap as f32),
        normed_embedding: true,
        norm_weight: false,
        out_std: Some(keys.number("initializer_range")? as f32 / (2.0 * layers).sqrt()),
        rotary: Rotary { reversed: true, ..decoder.rotary },
        ..decoder
    }
    .build(keys, family)
}
