//! Reads typed values out of the merged tree, with the schema's kinds.

use super::kind::{FromValue, Kind, Value};
use super::node::{Node, Tree};
use super::origin::Origin;
use super::schema::{self, Section, Shape, joined};
use crate::error::Failure;

/// One section of the tree.
#[derive(Clone)]
pub struct Reader<'a> {
    node: Option<&'a Node>,
    section: &'static Section,
    path: String,
}

impl<'a> Reader<'a> {
    pub fn root(node: &'a Node) -> Self {
        Self { node: Some(node), section: &schema::ROOT, path: String::new() }
    }

    pub fn node(&self, name: &str) -> Option<&'a Node> {
        self.node?.child(name).filter(|node| !node.is_null())
    }

    /// A value that must be there.
    pub fn get<T: FromValue>(&self, name: &str) -> Result<T, Failure> {
        self.find(name)?.ok_or_else(|| self.missing(name))
    }

    /// A value that may be left out.
    pub fn find<T: FromValue>(&self, name: &str) -> Result<Option<T>, Failure> {
        let path = joined(&self.path, name);
        let Some(node) = self.node(name) else { return Ok(None) };
        let kind = match self.section.key(name).map(|key| key.shape) {
            Some(Shape::Leaf(kind) | Shape::Either(kind, _)) => kind,
            _ => return Err(mismatch(&path)),
        };
        T::from_value(kind.read(node, &path)?).map(Some).ok_or_else(|| mismatch(&path))
    }

    /// The section below; empty where it was not given.
    pub fn section(&self, name: &str) -> Result<Self, Failure> {
        let path = joined(&self.path, name);
        let section = self.section.key(name).and_then(|key| key.shape.section());
        Ok(Self {
            node: self.node(name).filter(|node| matches!(node.value, Tree::Map(_))),
            section: section.ok_or_else(|| mismatch(&path))?,
            path,
        })
    }

    /// The section below, where it was given as a mapping.
    pub fn given(&self, name: &str) -> Result<Option<Self>, Failure> {
        let below = self.section(name)?;
        Ok(below.node.is_some().then_some(below))
    }

    /// The names and counts of a free mapping.
    pub fn counts(&self, name: &str) -> Result<Vec<(String, u64)>, Failure> {
        let entries = self.node(name).map(Node::entries).unwrap_or_default();
        let path = joined(&self.path, name);
        let count = |entry: &super::node::Entry| {
            let path = joined(&path, &entry.key);
            match Kind::FROM_ZERO.read(&entry.node, &path)? {
                Value::Integer(count) => Ok((entry.key.clone(), count)),
                _ => Err(mismatch(&path)),
            }
        };
        entries.iter().map(count).collect()
    }

    /// The names given here and their values, in the schema's order.
    pub fn leaves(&self) -> Result<Vec<(&'static str, Value)>, Failure> {
        let mut found = Vec::new();
        for key in self.section.keys {
            if let (Shape::Leaf(kind), Some(node)) = (key.shape, self.node(key.name)) {
                found.push((key.name, kind.read(node, &joined(&self.path, key.name))?));
            }
        }
        Ok(found)
    }

    pub fn missing(&self, name: &str) -> Failure {
        let path = joined(&self.path, name);
        let place = match self.node.map(|node| &node.origin) {
            Some(Origin::File { name, .. }) if self.path.is_empty() => format!("{name}: "),
            Some(origin) => format!("{}: ", origin.place()),
            None => String::new(),
        };
        let allowed = match self.section.key(name).map(|key| key.shape) {
            Some(Shape::Leaf(kind)) => kind.allowed(),
            Some(Shape::Either(kind, _)) => format!("{} or a mapping", kind.allowed()),
            _ => "a mapping".to_owned(),
        };
        Failure::usage(format!("{place}`{path}` is missing")).hint(format!("it must be {allowed}"))
    }
}

/// The schema and the code that reads it disagree: a bug here, not the user's mistake.
fn mismatch(path: &str) -> Failure {
    Failure::failed(format!("internal error: `{path}` is read as something it is not"))
}
