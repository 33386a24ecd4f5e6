//! The resolved tree back to YAML, each value with its origin as a comment.

use super::node::{Entry, Node, Tree};
use super::resolved::OriginRow;
use super::schema::{ROOT, Section, joined};

/// Comments line up behind values, unless a value is longer than this.
const COMMENT_COLUMN_MAX: usize = 48;

struct Line {
    indent: usize,
    path: String,
    text: String,
    /// The value and its origin; `None` for the head of a section.
    leaf: Option<(String, super::origin::Origin)>,
}

pub fn yaml(tree: &Node) -> String {
    let lines = lines(tree);
    let width = |line: &Line| line.indent + line.text.chars().count();
    let widths = lines.iter().filter(|line| line.leaf.is_some()).map(width);
    let column = widths.filter(|width| *width <= COMMENT_COLUMN_MAX).max().unwrap_or(0);
    let mut out = String::new();
    for line in &lines {
        let pad = column.saturating_sub(width(line));
        out.push_str(&" ".repeat(line.indent));
        out.push_str(&line.text);
        if let Some((_, origin)) = &line.leaf {
            out.push_str(&format!("{}  # {origin}", " ".repeat(pad)));
        }
        out.push('\n');
    }
    out
}

pub fn rows(tree: &Node) -> Vec<OriginRow> {
    let leaves = lines(tree).into_iter().filter_map(|line| {
        let (value, origin) = line.leaf?;
        Some(OriginRow { path: line.path, value, origin })
    });
    leaves.collect()
}

fn lines(tree: &Node) -> Vec<Line> {
    let mut lines = Vec::new();
    section(tree, Some(ROOT), "", 0, &mut lines);
    lines
}

/// Known keys come in the schema's order, free names (the classes of `plan.recompute`) as given.
fn section(node: &Node, known: Option<&'static Section>, path: &str, indent: usize, lines: &mut Vec<Line>) {
    let mut entries: Vec<_> = node.entries().iter().collect();
    if let Some(known) = known {
        entries.sort_by_key(|entry| known.keys.iter().position(|key| key.name == entry.key));
    }
    for entry in entries {
        let path = joined(path, &entry.key);
        let name = quoted(&entry.key);
        let below = known.and_then(|known| known.key(&entry.key));
        let mut line = |text: String, value: Option<String>| {
            let leaf = value.map(|value| (value, entry.node.origin.clone()));
            lines.push(Line { indent, path: path.clone(), text, leaf });
        };
        match &entry.node.value {
            Tree::Null => {}
            Tree::Map(inner) if inner.is_empty() => {
                // `{}` says something where the section is one that was asked for, and nothing elsewhere.
                if entry.node.origin != super::origin::Origin::Default {
                    line(format!("{name}: {{}}"), Some("{}".to_owned()));
                }
            }
            Tree::Map(_) => {
                line(format!("{name}:"), None);
                let below = below.and_then(|key| key.form.section());
                section(&entry.node, below, &path, indent + 2, lines);
            }
            _ => {
                let value = scalar(&entry.node);
                line(format!("{name}: {value}"), Some(value));
            }
        }
    }
}

/// A value on one line.
pub fn scalar(node: &Node) -> String {
    match &node.value {
        Tree::Null => "null".to_owned(),
        Tree::Bool(value) => value.to_string(),
        Tree::Number { text, .. } => text.clone(),
        Tree::Text(text) => quoted(text),
        Tree::List(items) => {
            let items: Vec<String> = items.iter().map(scalar).collect();
            format!("[{}]", items.join(", "))
        }
        Tree::Map(entries) => {
            let entry = |entry: &Entry| format!("{}: {}", quoted(&entry.key), scalar(&entry.node));
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

/// A text as YAML: plain where that reads back as the same text, else in double quotes.
pub fn quoted(text: &str) -> String {
    let plain_char = |c: char| c.is_ascii_alphanumeric() || "_./+%-".contains(c);
    let first_plain = text.chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || "_/".contains(c));
    let reserved = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let numeric = text.chars().next().is_some_and(|c| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_hexdigit() || "_.+-xo".contains(c));
    let plain =
        first_plain && !numeric && text.chars().all(plain_char) && !reserved.contains(&text.to_lowercase().as_str());
    // A JSON string is a YAML string.
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
