//! What a relative path is relative to: in a run file the folder that the file is in, everywhere else the current folder.

use std::path::Path;

use super::kind::Kind;
use super::node::{Node, Tree};
use super::schema::{Form, ROOT, Section};
use super::sources::BUILT_IN;

/// How a text is known to be a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// It always is one.
    Plain,
    /// It is one where there is such a folder, or where it begins with a dot; else it is a name.
    Folder,
    /// It is one where it has a separator or the suffix of a template; else it is a name.
    Template,
}

impl PathKind {
    fn is_path(self, text: &str, base: &Path) -> bool {
        match self {
            Self::Plain => true,
            Self::Folder => text.starts_with("./") || text.starts_with("../") || base.join(text).is_dir(),
            Self::Template => text.contains('/') || text.ends_with(".jinja") || text.ends_with(".j2"),
        }
    }
}

/// Makes every relative path of a tree one below `base`. An empty base leaves them as they are.
pub fn resolve(tree: &mut Node, base: &Path) {
    if base != Path::new("") {
        section(tree, ROOT, base);
    }
}

fn section(node: &mut Node, known: &'static Section, base: &Path) {
    for entry in node.entries_mut().into_iter().flatten() {
        let Some(key) = known.key(&entry.key) else { continue };
        match (key.form, &entry.node.value) {
            (Form::Section(below) | Form::Optional(below) | Form::Either(_, below), Tree::Map(_)) => {
                section(&mut entry.node, below, base);
            }
            (Form::Leaf(kind) | Form::Either(kind, _), _) => value(&mut entry.node, kind, base),
            _ => {}
        }
    }
}

fn value(node: &mut Node, kind: Kind, base: &Path) {
    let path_kind = match kind {
        Kind::Path(path_kind) => path_kind,
        Kind::Paths | Kind::Sources => PathKind::Plain,
        _ => return,
    };
    match &mut node.value {
        Tree::Text(text) => join(text, path_kind, base),
        // A path of digits only.
        Tree::Number { text, .. } => {
            let mut text = text.clone();
            join(&mut text, path_kind, base);
            node.value = Tree::Text(text);
        }
        Tree::List(items) => items.iter_mut().for_each(|item| value(item, kind, base)),
        Tree::Map(entries) => {
            for entry in entries.iter_mut().filter(|entry| entry.key == "path") {
                value(&mut entry.node, kind, base);
            }
        }
        Tree::Bool(_) | Tree::Null => {}
    }
}

fn join(text: &mut String, kind: PathKind, base: &Path) {
    if text.trim().is_empty() || text.starts_with(BUILT_IN) || !kind.is_path(text, base) {
        return;
    }
    let joined = base.join(text.as_str());
    // What is not UTF-8 cannot stand in a tree of texts.
    if let Some(joined) = joined.to_str() {
        joined.clone_into(text);
    }
}
