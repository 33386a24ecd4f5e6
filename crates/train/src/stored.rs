//! Folders whose weights are stored in few bits already: what `quantization_config` in their config.json says.

use plimsoll_graph::WeightFormat;
use serde_json::{Value as Json, json};

/// The format of a model's projections; `None` where nothing was quantised, and the reason where it is one that is not read.
pub(crate) fn stored_format(config: &Json) -> Result<Option<WeightFormat>, String> {
    let quantization = &config["quantization_config"];
    if quantization.is_null() {
        return Ok(None);
    }
    let given = |key: &str| quantization[key].as_bool().unwrap_or(false);
    let method = quantization["quant_method"].as_str().unwrap_or("bitsandbytes");
    match method {
        "bitsandbytes" if given("load_in_8bit") || given("_load_in_8bit") => Ok(Some(WeightFormat::Int8)),
        "bitsandbytes" => match quantization["bnb_4bit_quant_type"].as_str() {
            Some("nf4") => Ok(Some(WeightFormat::Nf4)),
            other => Err(format!("4 bits of type {}; only nf4 is supported", other.unwrap_or("fp4"))),
        },
        "compressed-tensors" => compressed(quantization).map(Some),
        other => Err(format!("`{other}`, which is not supported")),
    }
}

/// One group of weights of eight-bit floats with a scale for each row, or one for all.
fn compressed(quantization: &Json) -> Result<WeightFormat, String> {
    let groups = quantization["config_groups"].as_object();
    let mut groups = groups.into_iter().flat_map(|groups| groups.values());
    let (Some(group), None) = (groups.next(), groups.next()) else {
        return Err("compressed-tensors in several formats; only one of fp8 is supported".to_owned());
    };
    let weights = &group["weights"];
    let (bits, kind, strategy) = (&weights["num_bits"], &weights["type"], &weights["strategy"]);
    if *bits == json!(8) && *kind == json!("float") && [json!("channel"), json!("tensor")].contains(strategy) {
        return Ok(WeightFormat::E4m3);
    }
    Err(format!(
        "compressed-tensors of {bits} bits, type {kind}, a scale for each {strategy}; only \"float\" of 8 bits with scales \
         for each channel or tensor is supported"
    ))
}

/// What transformers needs to make the same weights of the model that an adapter belongs to: its `quantization_config`.
/// There is none that makes fp8 of rows.
pub(crate) fn quantization_config(format: WeightFormat, torch_dtype: &str) -> Json {
    match format {
        WeightFormat::Nf4 => json!({
            "quant_method": "bitsandbytes",
            "load_in_4bit": true,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": true,
            "bnb_4bit_compute_dtype": torch_dtype,
        }),
        WeightFormat::Int8 => json!({"quant_method": "bitsandbytes", "load_in_8bit": true}),
        WeightFormat::E4m3 => Json::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_the_configuration() {
        let check = |quantization: Json, expected: Result<Option<WeightFormat>, &str>| {
            let found = stored_format(&json!({"model_type": "llama", "quantization_config": quantization}));
            match expected {
                Ok(format) => assert_eq!(found, Ok(format)),
                Err(part) => assert!(found.as_ref().is_err_and(|reason| reason.contains(part)), "{found:?}"),
            }
        };
        check(Json::Null, Ok(None));
        for format in [WeightFormat::Nf4, WeightFormat::Int8] {
            check(quantization_config(format, "bfloat16"), Ok(Some(format)));
        }
        check(json!({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "fp4"}), Err("fp4"));
        check(json!({"quant_method": "gptq", "bits": 4}), Err("`gptq`"));
        let compressed = |weights: Json| {
            let groups = json!({"group_0": {"targets": ["Linear"], "weights": weights}});
            json!({"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]})
        };
        for strategy in ["channel", "tensor"] {
            let weights = json!({"num_bits": 8, "type": "float", "strategy": strategy});
            check(compressed(weights), Ok(Some(WeightFormat::E4m3)));
        }
        check(compressed(json!({"num_bits": 4, "type": "int", "strategy": "group"})), Err("4 bits"));
        assert_eq!(stored_format(&json!({"model_type": "llama"})), Ok(None));
    }
}
