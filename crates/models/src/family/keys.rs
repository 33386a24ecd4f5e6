//! Typed access to the keys of a `config.json`, with errors that name the key. Keys that a file does not have are those
//! of its family's defaults.

use serde_json::{Map, Value as Json};

use super::Family;
use crate::{ModelError, limits};

/// What transformers' configuration classes take for absent keys, by `model_type`; see `fixtures/make_defaults.py`.
const DEFAULTS: &str = include_str!("../../defaults.json");

pub(super) fn defaults(family: &Family) -> Map<String, Json> {
    let mut families: Map<String, Json> = serde_json::from_str(DEFAULTS).expect("part of the program");
    match families.remove(family.model_type) {
        Some(Json::Object(keys)) => keys,
        _ => panic!("no defaults for {}", family.model_type),
    }
}

pub(crate) struct ConfigKeys(Map<String, Json>);

impl ConfigKeys {
    /// The given keys, and those of the family that they leave out. A key that is null is not left out.
    pub(super) fn complete(given: &Map<String, Json>, family: &Family) -> Self {
        let mut keys = defaults(family);
        keys.extend(given.iter().map(|(key, value)| (key.clone(), value.clone())));
        Self(keys)
    }

    /// All keys, with what was made of some of them.
    pub(super) fn with(&self, resolved: impl IntoIterator<Item = (&'static str, Json)>) -> Json {
        let mut keys = self.0.clone();
        keys.extend(resolved.into_iter().map(|(key, value)| (key.to_owned(), value)));
        Json::Object(keys)
    }

    pub(super) fn present(&self, key: &str) -> Option<&Json> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        let Some(value) = self.present(key) else { return Ok(None) };
        let text = value.as_str();
        text.map(Some).ok_or_else(|| ModelError::Config(format!("`{key}` must be a string, found {value}")))
    }

    /// Names that stand for mappings of their own, where only numbers and words are expected.
    pub(super) fn nested(&self) -> Option<&str> {
        self.0.iter().find(|(_, value)| value.is_object()).map(|(name, _)| name.as_str())
    }

    /// An object below, with keys of its own and no defaults.
    pub(super) fn section(&self, key: &str) -> Result<Option<Self>, ModelError> {
        match self.present(key) {
            None => Ok(None),
            Some(Json::Object(object)) => Ok(Some(Self(object.clone())).filter(|section| !section.0.is_empty())),
            Some(other) => Err(ModelError::Config(format!("`{key}` must be an object, found {other}"))),
        }
    }

    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.present(key) else { return Ok(None) };
        let max = limits::of_key(key);
        match value.as_u64() {
            Some(n) if (1..=max).contains(&n) => Ok(Some(n as usize)),
            Some(n) if n > max => Err(ModelError::Config(format!("`{key}` must be at most {max}, found {n}"))),
            _ => Err(ModelError::Config(format!("`{key}` must be a positive whole number, found {value}"))),
        }
    }

    pub(super) fn required(&self, key: &str) -> Result<usize, ModelError> {
        self.count(key)?.ok_or_else(|| missing(key))
    }

    pub(super) fn number(&self, key: &str) -> Result<f64, ModelError> {
        self.optional_number(key)?.ok_or_else(|| missing(key))
    }

    pub(super) fn optional_number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.present(key) else { return Ok(None) };
        let number = value.as_f64();
        number.map(Some).ok_or_else(|| ModelError::Config(format!("`{key}` must be a number, found {value}")))
    }

    /// A number that divides, or whose root or logarithm is taken.
    pub(super) fn positive(&self, key: &str) -> Result<f64, ModelError> {
        self.optional_positive(key)?.ok_or_else(|| missing(key))
    }

    pub(super) fn optional_positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.optional_number(key)? {
            Some(number) if number <= 0.0 => {
                Err(ModelError::Config(format!("`{key}` must be a number above 0, found {number}")))
            }
            number => Ok(number),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, ModelError> {
        let value = self.present(key).ok_or_else(|| missing(key))?;
        value.as_bool().ok_or_else(|| ModelError::Config(format!("`{key}` must be true or false, found {value}")))
    }

    /// A token's number; as in PyTorch, those below zero count from the vocabulary's end.
    pub(super) fn token(&self, key: &str, vocabulary: usize) -> Result<Option<u32>, ModelError> {
        let Some(value) = self.present(key) else { return Ok(None) };
        let counted = |id: i64| if id < 0 { id + vocabulary as i64 } else { id };
        match value.as_i64().map(counted) {
            Some(id) if (0..vocabulary as i64).contains(&id) => Ok(Some(id as u32)),
            _ => Err(ModelError::Config(format!(
                "`{key}` must be a token of the vocabulary of {vocabulary}, found {value}"
            ))),
        }
    }

    /// The share that dropout takes.
    pub(super) fn rate(&self, key: &str) -> Result<f32, ModelError> {
        match self.number(key)? {
            rate if (0.0..1.0).contains(&rate) => Ok(rate as f32),
            rate => Err(ModelError::Config(format!("`{key}` must lie in [0, 1), found {rate}"))),
        }
    }

    /// Refuses a rate that training would not apply.
    pub(super) fn refuse_dropout(&self, key: &str) -> Result<(), ModelError> {
        match self.optional_number(key)? {
            Some(rate) if rate != 0.0 => Err(ModelError::Dropout { key: key.to_owned(), rate }),
            _ => Ok(()),
        }
    }
}

fn missing(key: &str) -> ModelError {
    ModelError::Config(format!("`{key}` is missing"))
}
