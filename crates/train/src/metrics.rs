//! Named numbers that a task reports, on their way to metrics file, step line, outcome and JSON.

use serde::ser::{Serialize, SerializeMap, Serializer};

/// In the order in which they are shown; as JSON, a map.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metrics(Vec<(&'static str, f64)>);

impl Metrics {
    pub fn new(named: impl IntoIterator<Item = (&'static str, f64)>) -> Self {
        Self(named.into_iter().collect())
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.0.push((name, value));
        self
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> {
        self.0.iter().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Metrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}
