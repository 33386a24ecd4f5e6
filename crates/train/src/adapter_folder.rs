//! Adapters as PEFT saves them: what `adapter_config.json` says. The weights are read once there is a place for them.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_graph::WeightFormat;
use plimsoll_models::{Lora, Targets};
use serde_json::{Value as Json, json};

use crate::TrainError;
use crate::stored::quantization_config;

#[derive(Debug, Clone, PartialEq)]
pub struct AdapterFolder {
    pub path: PathBuf,
    pub lora: Lora,
    /// The model it belongs to, as whoever saved it called it.
    pub base: String,
    /// The format of few bits that its base was stored in while it was trained, if it was and that is known.
    pub base_format: Option<WeightFormat>,
    /// PEFT's word for what the model is for.
    pub task_type: Option<String>,
}

/// The file that makes a folder one with an adapter.
const CONFIG: &str = "adapter_config.json";

/// What this version does not compute, each with the value that means it is not there.
const UNSUPPORTED: [(&str, Json); 14] = [
    ("use_dora", Json::Bool(false)),
    ("use_qalora", Json::Bool(false)),
    ("use_bdlora", Json::Null),
    ("alora_invocation_tokens", Json::Null),
    ("arrow_config", Json::Null),
    ("velora_config", Json::Null),
    ("kasa_config", Json::Null),
    ("monteclora_config", Json::Null),
    ("lora_bias", Json::Bool(false)),
    ("fan_in_fan_out", Json::Bool(false)),
    ("layer_replication", Json::Null),
    ("layers_to_transform", Json::Null),
    ("trainable_token_indices", Json::Null),
    ("target_parameters", Json::Null),
];

/// Ways to begin that leave the base as it is. The others take from it what the adapters begin with, so that these belong to
/// a base that nobody has saved.
const BEGINNINGS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

impl AdapterFolder {
    pub fn is_one(folder: &Path) -> bool {
        folder.join(CONFIG).is_file()
    }

    pub fn open(folder: &Path) -> Result<Self, TrainError> {
        let path = folder.join(CONFIG);
        let unusable = |reason: String| TrainError::AdapterConfig { path: path.clone(), reason };
        let text = fs::read_to_string(&path).map_err(|error| unusable(error.to_string()))?;
        let config: Json = serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
        let lora = lora(&config).map_err(unusable)?;
        let base = config["base_model_name_or_path"].as_str().unwrap_or_default().to_owned();
        let task_type = config["task_type"].as_str().map(str::to_owned);
        Ok(Self { path: folder.to_owned(), lora, base, base_format: base_format(folder), task_type })
    }
}

/// Beside `adapter_config.json`, where the base was stored in few bits: in which, and how transformers makes the same.
pub(crate) const BASE_FILE: &str = "base_quantization.json";

/// What [`BASE_FILE`] holds.
pub(crate) fn base_file(format: WeightFormat, torch_dtype: &str) -> Json {
    json!({"base": format.name(), "quantization_config": quantization_config(format, torch_dtype)})
}

/// PEFT has no word for it, so folders from elsewhere do not say.
fn base_format(folder: &Path) -> Option<WeightFormat> {
    let text = fs::read_to_string(folder.join(BASE_FILE)).ok()?;
    let content: Json = serde_json::from_str(&text).ok()?;
    WeightFormat::named(content["base"].as_str()?)
}

fn lora(config: &Json) -> Result<Lora, String> {
    let given = |key: &str| config.get(key).filter(|value| !value.is_null());
    match config["peft_type"].as_str() {
        Some("LORA") => {}
        other => return Err(format!("`peft_type` is {}; only LORA is supported", other.unwrap_or("missing"))),
    }
    for (key, without) in UNSUPPORTED {
        let empty = |value: &Json| value.as_array().is_some_and(Vec::is_empty);
        if let Some(value) = given(key).filter(|value| **value != without && !empty(value)) {
            return Err(format!("`{key}` is {value}, which is not supported"));
        }
    }
    if let Some(begun) = given("init_lora_weights").and_then(Json::as_str).filter(|begun| !BEGINNINGS.contains(begun)) {
        return Err(format!(
            "`init_lora_weights` is \"{begun}\", which changes the base too; convert the adapter to plain LoRA with PEFT"
        ));
    }
    if let Some(bias) = given("bias").filter(|bias| *bias != "none") {
        return Err(format!("`bias` is {bias}; only \"none\" is supported"));
    }
    for key in ["rank_pattern", "alpha_pattern"] {
        if given(key).and_then(Json::as_object).is_some_and(|pattern| !pattern.is_empty()) {
            return Err(format!("`{key}` gives layers ranks of their own, which is not supported"));
        }
    }
    let number = |key: &str| {
        config[key].as_f64().filter(|n| *n > 0.0).ok_or_else(|| format!("`{key}` must be a positive number"))
    };
    let targets = match &config["target_modules"] {
        Json::String(all) if all == "all-linear" => Targets::AllLinear,
        Json::Array(names) => {
            // A name may be a whole path; which layers have an adapter is seen in the weights.
            let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
            let name = |name: &Json| name.as_str().map(last).ok_or("`target_modules` must list names");
            let mut names = names.iter().map(name).collect::<Result<Vec<String>, _>>()?;
            names.sort();
            names.dedup();
            Targets::Named(names)
        }
        other => return Err(format!("`target_modules` is {other}; expected a list of layer names or \"all-linear\"")),
    };
    Ok(Lora {
        r: number("r")? as usize,
        alpha: number("lora_alpha")? as f32,
        // Nothing is dropped where nothing is trained; whoever trains on says what is.
        dropout: 0.0,
        targets,
        rslora: config["use_rslora"].as_bool().unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::WEIGHT_FORMATS;

    use super::*;

    fn config() -> Json {
        json!({
            "peft_type": "LORA", "r": 8, "lora_alpha": 16, "lora_dropout": 0.1, "bias": "none", "use_rslora": true,
            "target_modules": ["q_proj", "v_proj"], "modules_to_save": null, "rank_pattern": {}, "layers_pattern": null,
        })
    }

    #[test]
    fn settings_are_read() {
        let targets = Targets::Named(vec!["q_proj".into(), "v_proj".into()]);
        let expected = Lora { r: 8, alpha: 16.0, dropout: 0.0, targets, rslora: true };
        assert_eq!(lora(&config()), Ok(expected));
        let mut paths = config();
        paths["target_modules"] =
            json!(["model.layers.0.self_attn.v_proj", "model.layers.0.self_attn.q_proj", "v_proj"]);
        paths["init_lora_weights"] = json!("gaussian");
        assert_eq!(lora(&paths), lora(&config()));
        let mut all = config();
        all["target_modules"] = json!("all-linear");
        assert_eq!(lora(&all).map(|lora| lora.targets), Ok(Targets::AllLinear));
    }

    #[test]
    fn a_base_in_few_bits_is_named_beside_the_adapter() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(base_format(folder.path()), None);
        for format in WEIGHT_FORMATS {
            let content = base_file(format, "bfloat16").to_string();
            fs::write(folder.path().join(BASE_FILE), content).expect("writable");
            assert_eq!(base_format(folder.path()), Some(format));
        }
        fs::write(folder.path().join(BASE_FILE), "{\"base\": \"q5\"}").expect("writable");
        assert_eq!(base_format(folder.path()), None);
    }

    #[test]
    fn what_would_be_computed_wrongly_is_refused() {
        for (key, value, says) in [
            ("peft_type", json!("IA3"), "`peft_type` is IA3"),
            ("use_dora", json!(true), "`use_dora` is true"),
            ("bias", json!("all"), "`bias` is \"all\""),
            ("rank_pattern", json!({"q_proj": 4}), "`rank_pattern`"),
            ("alpha_pattern", json!({"q_proj": 4}), "`alpha_pattern`"),
            ("lora_bias", json!(true), "`lora_bias` is true"),
            ("init_lora_weights", json!("pissa_niter_4"), "`init_lora_weights` is \"pissa_niter_4\""),
            ("layers_to_transform", json!([0]), "`layers_to_transform` is [0]"),
            ("target_modules", json!(".*_proj"), "`target_modules` is \".*_proj\""),
            ("r", json!(0), "`r` must be"),
        ] {
            let mut config = config();
            config[key] = value;
            let refused = lora(&config).expect_err(key);
            assert!(refused.starts_with(says), "{refused}");
        }
    }
}
