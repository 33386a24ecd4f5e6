//! Checks one layer against the schema: unknown keys, wrong values, two of which only one may stand.

use super::kind::{Kind, wrong};
use super::nearest::nearest;
use super::node::{Entry, Node, Tree};
use super::schema::{self, Form, Key, Section, joined};
use crate::failure::Failure;

/// The whole layer; `node` is its root.
pub fn layer(node: &Node) -> Result<(), Failure> {
    match &node.value {
        Tree::Map(_) => section(node, schema::ROOT, ""),
        Tree::Null => Ok(()),
        _ => Err(Failure::config_at(
            "",
            &node.origin,
            format!("a run file must be a mapping of keys to values, not {}", node.shown()),
        )
        .hint("for example `model: qwen3-0.6b`; `plimsoll init` writes a file to start from")),
    }
}

fn section(node: &Node, section: &'static Section, parent: &str) -> Result<(), Failure> {
    for (index, entry) in node.entries().iter().enumerate() {
        let Some(key) = section.key(&entry.key) else {
            return Err(unknown_key(entry, section, parent));
        };
        let path = joined(parent, key.name);
        let before = &node.entries()[..index];
        let given = |rival: &&str| before.iter().any(|entry| entry.key == **rival);
        if let Some(rival) = section.rivals(key.name).find(given) {
            let rival = joined(parent, rival);
            let message = format!("`{path}` conflicts with `{rival}`; set only one of them");
            return Err(Failure::config_at(&path, &entry.key_origin, message));
        }
        value(&entry.node, key, &path)?;
    }
    Ok(())
}

fn value(node: &Node, key: &'static Key, path: &str) -> Result<(), Failure> {
    match (key.form, &node.value) {
        // Nothing where nothing is required means "not set".
        (Form::Leaf(_), Tree::Null) if key.default.is_none() => Ok(()),
        (Form::Section(_) | Form::Optional(_) | Form::List(_) | Form::Counts, Tree::Null) => Ok(()),
        (Form::Leaf(kind), _) => kind.read(node, path).map(|_| ()),
        (Form::Counts, Tree::Map(entries)) => entries.iter().try_for_each(|entry| {
            let path = joined(path, &entry.key);
            Kind::FROM_ZERO.read(&entry.node, &path).map(|_| ())
        }),
        (Form::List(below), Tree::List(items)) => {
            let mut numbered = items.iter().enumerate();
            numbered.try_for_each(|(index, item)| value_of_list(item, below, &format!("{path}[{index}]")))
        }
        (Form::List(_), _) => Err(wrong(node, path, &key.form.allowed())),
        (Form::Counts, _) => Err(wrong(node, path, "a mapping of names to numbers of layers")),
        (Form::Section(below) | Form::Optional(below) | Form::Either(_, below), Tree::Map(_)) => {
            section(node, below, path)
        }
        (Form::Either(kind, below), _) => kind
            .read(node, path)
            .map(|_| ())
            .map_err(|failure| failure.hint(format!("or a mapping of {}", listed(below)))),
        (Form::Section(below) | Form::Optional(below), _) => {
            let allowed =
                if below.keys.is_empty() { "empty".to_owned() } else { format!("a mapping of {}", listed(below)) };
            Err(wrong(node, path, &allowed))
        }
    }
}

fn value_of_list(item: &Node, below: &'static Section, path: &str) -> Result<(), Failure> {
    match &item.value {
        Tree::Map(_) => section(item, below, path),
        _ => Err(wrong(item, path, &format!("a mapping of {}", listed(below)))),
    }
}

fn listed(section: &Section) -> String {
    section.names().join(", ")
}

fn unknown_key(entry: &Entry, section: &'static Section, parent: &str) -> Failure {
    let path = joined(parent, &entry.key);
    let mut failure = Failure::config_at(&path, &entry.key_origin, format!("unknown key `{path}`"));
    if let Some(known) = nearest_path(&entry.key, section, parent) {
        failure = failure.hint(format!("did you mean `{known}`?"));
    }
    let place = if parent.is_empty() { "at the top level".to_owned() } else { format!("under `{parent}`") };
    let allowed = if section.keys.is_empty() { "nothing".to_owned() } else { listed(section) };
    failure.hint(format!("allowed {place}: {allowed}"))
}

/// A key known elsewhere by this very name, else the nearest one here, else the nearest anywhere.
pub fn nearest_path(name: &str, section: &'static Section, parent: &str) -> Option<String> {
    let same = |key: &Key| key.name == name || key.also.contains(&name);
    if let Some(key) = section.keys.iter().find(|key| same(key)) {
        return Some(joined(parent, key.name));
    }
    if let Some(known) = nearest(name, section.keys.iter().map(|key| key.name)) {
        return Some(joined(parent, known));
    }
    let everywhere = schema::paths();
    if let Some((path, _)) = everywhere.iter().find(|(_, key)| same(key)) {
        return Some(path.clone());
    }
    let names = everywhere.iter().flat_map(|(_, key)| [key.name].into_iter().chain(key.also.iter().copied()));
    let known = nearest(name, names)?;
    let found = everywhere.iter().find(|(_, key)| key.name == known || key.also.contains(&known))?;
    Some(found.0.clone())
}
