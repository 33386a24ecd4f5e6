//! Rotary frequencies as configurations write them.

use serde_json::{Value as Json, json};

use super::ConfigKeys;
use crate::ModelError;
use crate::rotary::RopeScaling;

/// The base that transformers takes where nothing names one, whatever the family.
const DEFAULT_THETA: f64 = 10_000.0;

/// Base and scaling: `rope_theta` and `rope_scaling` in older files, both inside `rope_parameters` in newer ones. Of
/// both, the older one counts.
pub(super) fn rope(keys: &ConfigKeys) -> Result<(f64, RopeScaling), ModelError> {
    let outer_theta = keys.optional_positive("rope_theta")?.unwrap_or(DEFAULT_THETA);
    let rope = match keys.section("rope_scaling")? {
        Some(older) => older,
        None => match keys.section("rope_parameters")? {
            Some(newer) => newer,
            None => return Ok((outer_theta, RopeScaling::None)),
        },
    };
    if let Some(layers) = rope.nested() {
        return Err(ModelError::Config(format!(
            "rotary settings of their own for some layers (`{layers}`) are not supported"
        )));
    }
    let theta = rope.optional_positive("rope_theta")?.unwrap_or(outer_theta);
    let kind = match rope.text("rope_type")? {
        Some(kind) => kind,
        None => rope.text("type")?.unwrap_or("default"),
    };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: rope.positive("factor")? },
        "llama3" => llama3(keys, &rope)?,
        other => {
            return Err(ModelError::Config(format!(
                "rope scaling `{other}` is not supported; use default, linear or llama3"
            )));
        }
    };
    // Frequencies that are not scaled are made for whole heads whatever it says, in transformers too.
    let parts = [keys, &rope].map(|section| section.optional_number("partial_rotary_factor"));
    for part in parts {
        if part?.is_some_and(|part| part != 1.0) && scaling != RopeScaling::None {
            return Err(ModelError::Config(format!(
                "`partial_rotary_factor` with rope scaling `{kind}` is not supported"
            )));
        }
    }
    Ok((theta, scaling))
}

fn llama3(keys: &ConfigKeys, rope: &ConfigKeys) -> Result<RopeScaling, ModelError> {
    const POSITIONS: &str = "original_max_position_embeddings";
    let (low, high) = (rope.positive("low_freq_factor")?, rope.positive("high_freq_factor")?);
    if low > high {
        return Err(ModelError::Config(format!(
            "`low_freq_factor` must not be above `high_freq_factor`, found {low} and {high}"
        )));
    }
    // The one beside the section counts before the one in it.
    let positions = match keys.optional_positive(POSITIONS)? {
        Some(positions) => positions,
        None => match rope.optional_positive(POSITIONS)? {
            Some(positions) => positions,
            None => keys.positive("max_position_embeddings")?,
        },
    };
    Ok(RopeScaling::Llama3 {
        factor: rope.positive("factor")?,
        low_freq_factor: low,
        high_freq_factor: high,
        original_max_position: positions,
    })
}

/// The keys that say so, in both spellings.
pub(super) fn rope_keys(theta: f64, scaling: RopeScaling) -> [(&'static str, Json); 3] {
    let older = match scaling {
        RopeScaling::None => Json::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position as u64,
        }),
    };
    let mut newer = if older.is_null() { json!({"rope_type": "default"}) } else { older.clone() };
    newer["rope_theta"] = json!(theta);
    [("rope_theta", json!(theta)), ("rope_scaling", older), ("rope_parameters", newer)]
}
