//! A configuration value together with where it came from.

use super::origin::Origin;
use super::render::scalar;

#[derive(Clone, Debug)]
pub struct Node {
    pub value: Tree,
    pub origin: Origin,
}

#[derive(Clone, Debug)]
pub enum Tree {
    Null,
    Bool(bool),
    /// `text` is the number as it was written, for messages and for rendering it back.
    Number {
        text: String,
        value: f64,
        integer: Option<i128>,
    },
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: String,
    /// Where the key itself stands; its value has a place of its own.
    pub key_origin: Origin,
    pub node: Node,
}

impl Node {
    pub fn empty_map(origin: Origin) -> Self {
        Self { value: Tree::Map(Vec::new()), origin }
    }

    /// A mapping with one entry, so that `a.b.c` can be built from the inside out.
    pub fn wrapped(self, key: &str) -> Self {
        let origin = self.origin.clone();
        let entry = Entry { key: key.to_owned(), key_origin: origin.clone(), node: self };
        Self { value: Tree::Map(vec![entry]), origin }
    }

    pub fn is_null(&self) -> bool {
        matches!(self.value, Tree::Null)
    }

    fn is_nested(&self) -> bool {
        matches!(self.value, Tree::List(_) | Tree::Map(_))
    }

    pub fn entries(&self) -> &[Entry] {
        match &self.value {
            Tree::Map(entries) => entries,
            _ => &[],
        }
    }

    pub fn entries_mut(&mut self) -> Option<&mut Vec<Entry>> {
        match &mut self.value {
            Tree::Map(entries) => Some(entries),
            _ => None,
        }
    }

    pub fn child(&self, key: &str) -> Option<&Node> {
        let entry = self.entries().iter().find(|entry| entry.key == key)?;
        Some(&entry.node)
    }

    /// The node at a dotted path.
    pub fn at(&self, path: &str) -> Option<&Node> {
        path.split('.').try_fold(self, |node, key| node.child(key))
    }

    /// The value in the words of a message: `` `abc` ``, `` `[1, 2]` ``, `a mapping`.
    pub fn shown(&self) -> String {
        match &self.value {
            Tree::Null => "nothing".to_owned(),
            Tree::Bool(value) => format!("`{value}`"),
            Tree::Number { text, .. } => format!("`{text}`"),
            Tree::Text(text) => format!("`{text}`"),
            Tree::List(items) if items.iter().any(Self::is_nested) => "a list".to_owned(),
            Tree::List(_) => format!("`{}`", scalar(self)),
            Tree::Map(_) => "a mapping".to_owned(),
        }
    }
}
