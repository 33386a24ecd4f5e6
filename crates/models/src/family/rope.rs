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
    let outer_theta = keys.optional_number("rope_theta")?.unwrap_or(DEFAULT_THETA);
    let rope = match keys.section("rope_scaling")? {
        Some(older) => older,
        None => match keys.section("rope_parameters")? {
            Some(newer) => newer,
            None => return Ok((outer_theta, RopeScaling::None)),
        },
    };
    let theta = rope.optional_number("rope_theta")?.unwrap_or(outer_theta);
    let scaling = match rope.text("rope_type").or_else(|| rope.text("type")).unwrap_or("default") {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: rope.number("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: rope.number("factor")?,
            low_freq_factor: rope.number("low_freq_factor")?,
            high_freq_factor: rope.number("high_freq_factor")?,
            original_max_position: match rope.optional_number("original_max_position_embeddings")? {
                Some(positions) => positions,
                None => keys.number("max_position_embeddings")?,
            },
        },
        other => {
            return Err(ModelError::Config(format!(
                "rope scaling `{other}` is not supported; use default, linear or llama3"
            )));
        }
    };
    Ok((theta, scaling))
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
