//! YAML text to a tree of nodes, each with its place.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{MessageFormatter, NonFiniteFloatPolicy, Spanned, UserMessageFormatter};

use super::node::{Entry, Node, Tree};
use super::origin::Origin;
use crate::failure::Failure;

/// Parses one YAML document. `place(line, column)` says where a value came from.
pub fn parse(text: &str, place: &dyn Fn(u64, u64) -> Origin) -> Result<Node, Failure> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
        // Passed on as text, so that `.inf` is refused by the key that cannot take it.
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options) {
        Ok(raw) => Ok(node(raw, text, place)),
        Err(error) => {
            let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
            let reason = UserMessageFormatter.format_message(&error).into_owned();
            Err(Failure::config_at("", &place(line, column), format!("not valid YAML: {reason}")))
        }
    }
}

enum Raw {
    Null,
    Bool(bool),
    Number { value: f64, integer: Option<i128> },
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

fn node(raw: Spanned<Raw>, text: &str, place: &dyn Fn(u64, u64) -> Origin) -> Node {
    let at = raw.defined;
    // An alias is wrong where it is used, whatever it stands for.
    let used = raw.referenced;
    let value = match raw.value {
        Raw::Null => Tree::Null,
        Raw::Bool(value) => Tree::Bool(value),
        Raw::Number { value, integer } => {
            Tree::Number { text: written(&at, text).unwrap_or_else(|| value.to_string()), value, integer }
        }
        Raw::Text(value) => Tree::Text(value),
        Raw::List(items) => Tree::List(items.into_iter().map(|item| node(item, text, place)).collect()),
        Raw::Map(pairs) => Tree::Map(
            pairs
                .into_iter()
                .map(|(key, value)| Entry {
                    key_origin: place(key.referenced.line(), key.referenced.column()),
                    key: key.value,
                    node: node(value, text, place),
                })
                .collect(),
        ),
    };
    Node { value, origin: place(used.line(), used.column()) }
}

/// The characters of a scalar as they stand in the text.
fn written(at: &serde_saphyr::Location, text: &str) -> Option<String> {
    let span = at.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let len = usize::try_from(span.byte_len()?).ok()?;
    let slice = text.get(start..start.checked_add(len)?)?.trim();
    (!slice.is_empty()).then(|| slice.to_owned())
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a mapping")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Number { value: value as f64, integer: Some(value.into()) })
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Number { value: value as f64, integer: Some(value.into()) })
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        // `1e6` is a whole number to whoever writes it, as long as a float holds it exactly.
        let whole = value.fract() == 0.0 && value.abs() <= 2f64.powi(53);
        Ok(Raw::Number { value, integer: whole.then_some(value as i128) })
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = access.next_entry()? {
            pairs.push(pair);
        }
        Ok(Raw::Map(pairs))
    }
}
