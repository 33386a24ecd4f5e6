//! The sources of training data: paths, or paths with weights.

use super::kind::{Kind, Range, Value, wrong};
use super::nearest::nearest;
use super::node::{Node, Tree};
use crate::failure::Failure;

/// What stands before the name of a dataset that comes with the program.
pub const BUILT_IN: &str = "builtin:";

/// One entry of `data.train`.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceEntry {
    /// A file, a pattern or a folder.
    pub path: String,
    /// Its share of a mixture, relative to the others'. All sources have one or none has.
    pub weight: Option<f64>,
}

pub const ALLOWED: &str = "a path, a list of paths or a list of {path, weight}";

const KEYS: [&str; 2] = ["path", "weight"];

pub fn read(node: &Node, path: &str) -> Result<Vec<SourceEntry>, Failure> {
    let Tree::List(items) = &node.value else {
        let Ok(Value::Text(text)) = Kind::Text.read(node, path) else { return Err(wrong(node, path, ALLOWED)) };
        return Ok(vec![SourceEntry { path: text, weight: None }]);
    };
    if items.is_empty() {
        return Err(wrong(node, path, ALLOWED));
    }
    let mut entries = Vec::new();
    for (index, item) in items.iter().enumerate() {
        entries.push(entry(item, &format!("{path}[{index}]"))?);
    }
    let weighted = entries.iter().filter(|entry| entry.weight.is_some()).count();
    let bare = entries.iter().position(|entry| entry.weight.is_none());
    match bare {
        Some(index) if weighted > 0 => Err(Failure::config_at(
            path,
            &items[index].origin,
            format!("`{path}[{index}]` has no weight, but {weighted} of the {} sources have one", entries.len()),
        )
        .hint("set a weight for every source, as in {path: a.jsonl, weight: 2}, or for none")),
        _ => Ok(entries),
    }
}

fn entry(node: &Node, path: &str) -> Result<SourceEntry, Failure> {
    let Tree::Map(entries) = &node.value else {
        return match Kind::Text.read(node, path) {
            Ok(Value::Text(text)) => Ok(SourceEntry { path: text, weight: None }),
            _ => Err(wrong(node, path, "a path or {path, weight}")),
        };
    };
    if let Some(unknown) = entries.iter().find(|entry| !KEYS.contains(&entry.key.as_str())) {
        let message = format!("unknown key `{path}.{}`", unknown.key);
        let failure = Failure::config_at(path, &unknown.key_origin, message);
        let failure = match nearest(&unknown.key, KEYS) {
            Some(known) => failure.hint(format!("did you mean `{path}.{known}`?")),
            None => failure,
        };
        return Err(failure.hint(format!("allowed under `{path}`: {}", KEYS.join(", "))));
    }
    let Some(source) = node.child("path") else {
        let failure = Failure::config_at(path, &node.origin, format!("`{path}.path` is missing"));
        return Err(failure.hint("it must be a string"));
    };
    let Value::Text(source) = Kind::Text.read(source, &format!("{path}.path"))? else {
        return Err(wrong(source, &format!("{path}.path"), &Kind::Text.allowed()));
    };
    let weight = match node.child("weight") {
        Some(weight) => match Kind::Number(Range::ABOVE_ZERO).read(weight, &format!("{path}.weight"))? {
            Value::Number(weight) => Some(weight),
            _ => None,
        },
        None => None,
    };
    Ok(SourceEntry { path: source, weight })
}
