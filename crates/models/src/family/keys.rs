//! Typed access to the keys of a `config.json`, with errors that name the key.

use serde_json::{Map, Value as Json};

use crate::{ModelError, limits};

pub(crate) struct ConfigKeys<'a>(pub(super) &'a Map<String, Json>);

impl<'a> ConfigKeys<'a> {
    pub(crate) fn new(object: &'a Map<String, Json>) -> Self {
        Self(object)
    }

    pub(crate) fn present(&self, key: &str) -> Option<&'a Json> {
        self.0.get(key).filter(|v| !v.is_null())
    }

    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        self.present(key).and_then(Json::as_str)
    }

    /// An object below, with keys of its own.
    pub(crate) fn section(&self, key: &str) -> Result<Option<ConfigKeys<'a>>, ModelError> {
        match self.present(key) {
            None => Ok(None),
            Some(Json::Object(object)) => Ok(Some(Self(object))),
            Some(other) => Err(ModelError::Config(format!("`{key}` must be an object, found {other}"))),
        }
    }

    pub(crate) fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.present(key) else { return Ok(None) };
        let max = limits::of_key(key);
        match value.as_u64() {
            Some(n) if (1..=max).contains(&n) => Ok(Some(n as usize)),
            Some(n) if n > max => Err(ModelError::Config(format!("`{key}` must be at most {max}, found {n}"))),
            _ => Err(ModelError::Config(format!("`{key}` must be a positive whole number, found {value}"))),
        }
    }

    pub(crate) fn required(&self, key: &str) -> Result<usize, ModelError> {
        self.count(key)?.ok_or_else(|| ModelError::Config(format!("`{key}` is missing")))
    }

    pub(crate) fn number(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        Ok(self.optional_number(key)?.unwrap_or(default))
    }

    pub(crate) fn optional_number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.present(key) else { return Ok(None) };
        let number = value.as_f64();
        number.map(Some).ok_or_else(|| ModelError::Config(format!("`{key}` must be a number, found {value}")))
    }

    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        let Some(value) = self.present(key) else { return Ok(default) };
        value.as_bool().ok_or_else(|| ModelError::Config(format!("`{key}` must be true or false, found {value}")))
    }
}
