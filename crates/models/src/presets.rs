//! Well-known models by name, with their exact shapes, for planning and benchmarks without a download.

use serde_json::Value as Json;

use crate::{Architecture, ModelError};

/// Name, configuration and published parameter count of each preset.
const PRESETS: &str = include_str!("../presets.json");

fn entries() -> Vec<Json> {
    serde_json::from_str(PRESETS).expect("presets.json is part of the program")
}

pub fn preset_names() -> Vec<String> {
    entries().iter().filter_map(|e| e["name"].as_str().map(str::to_owned)).collect()
}

/// The preset of that name, if there is one.
pub fn preset(name: &str) -> Option<Result<Architecture, ModelError>> {
    let wanted = name.to_ascii_lowercase();
    let entry = entries().into_iter().find(|e| e["name"] == *wanted)?;
    Some(Architecture::from_value(entry["config"].clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_counts_are_the_published_ones() {
        let entries = entries();
        assert!(entries.len() >= 13);
        for entry in entries {
            let name = entry["name"].as_str().expect("a name");
            let config = preset(name).expect("listed").expect("valid");
            assert_eq!(config.parameter_count() as u64, entry["parameters"].as_u64().expect("a count"), "{name}");
        }
    }
}
