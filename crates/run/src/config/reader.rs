//! Reads typed values out of the merged tree, with the schema's kinds.

use super::kind::{FromValue, Kind, Value};
use super::node::{Entry, Node, Tree};
use super::origin::Origin;
use super::schema::{self, Form, Section, joined};
use crate::failure::Failure;

/// One section of the tree.
#[derive(Clone)]
pub struct Reader<'a> {
    node: Option<&'a Node>,
    section: &'static Section,
    path: String,
}

impl<'a> Reader<'a> {
    pub fn root(node: &'a Node) -> Self {
        Self { node: Some(node), section: schema::ROOT, path: String::new() }
    }

    pub fn node(&self, name: &str) -> Option<&'a Node> {
        self.node?.child(name).filter(|node| !node.is_null())
    }

    /// A value, where one is set; `none` is not.
    pub fn find<T: FromValue>(&self, name: &str) -> Result<Option<T>, Failure> {
        let path = joined(&self.path, name);
        let Some(node) = self.node(name) else { return Ok(None) };
        let kind = match self.section.key(name).map(|key| key.form) {
            Some(Form::Leaf(kind) | Form::Either(kind, _)) => kind,
            _ => return Err(mismatch(&path)),
        };
        match kind.read(node, &path)? {
            Value::None => Ok(None),
            value => T::from_value(value).map(Some).ok_or_else(|| mismatch(&path)),
        }
    }

    /// The section below; empty where it was not given.
    pub fn section(&self, name: &str) -> Result<Self, Failure> {
        let path = joined(&self.path, name);
        let section = self.section.key(name).and_then(|key| key.form.section());
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

    /// The mappings of a list; none where it was not given.
    pub fn items(&self, name: &str) -> Result<Vec<Self>, Failure> {
        let path = joined(&self.path, name);
        let Some(Form::List(section)) = self.section.key(name).map(|key| key.form) else { return Err(mismatch(&path)) };
        let Some(Tree::List(items)) = self.node(name).map(|node| &node.value) else { return Ok(Vec::new()) };
        let numbered = items.iter().enumerate();
        Ok(numbered.map(|(index, node)| Self { node: Some(node), section, path: format!("{path}[{index}]") }).collect())
    }

    /// The names and counts of a free mapping, where one was given.
    pub fn counts(&self, name: &str) -> Result<Option<Vec<(String, u64)>>, Failure> {
        let Some(node) = self.node(name) else { return Ok(None) };
        let path = joined(&self.path, name);
        let count = |entry: &Entry| {
            let path = joined(&path, &entry.key);
            match Kind::FROM_ZERO.read(&entry.node, &path)? {
                Value::Integer(count) => Ok((entry.key.clone(), count)),
                _ => Err(mismatch(&path)),
            }
        };
        node.entries().iter().map(count).collect::<Result<_, _>>().map(Some)
    }

    /// The names given here and their values, in the schema's order.
    pub fn leaves(&self) -> Result<Vec<(&'static str, Value)>, Failure> {
        let mut found = Vec::new();
        for key in self.section.keys {
            if let (Form::Leaf(kind), Some(node)) = (key.form, self.node(key.name)) {
                found.push((key.name, kind.read(node, &joined(&self.path, key.name))?));
            }
        }
        Ok(found)
    }

    pub fn path_of(&self, name: &str) -> String {
        joined(&self.path, name)
    }

    /// That a value is wrong, with its place where it is given.
    pub fn invalid(&self, name: &str, message: String) -> Failure {
        let path = joined(&self.path, name);
        match self.node(name) {
            Some(node) => Failure::config_at(&path, &node.origin, message),
            None => Failure::config(message),
        }
    }

    pub fn missing(&self, name: &str) -> Failure {
        let path = joined(&self.path, name);
        let message = format!("`{path}` is missing");
        let failure = match self.node.map(|node| &node.origin) {
            // Of a key that is nowhere in the file, the file is all there is to name.
            Some(Origin::File { name, .. }) if self.path.is_empty() => Failure::config_in(&path, name, message),
            Some(origin) => Failure::config_at(&path, origin, message),
            None => Failure::config(message),
        };
        let allowed = self.section.key(name).map_or_else(String::new, |key| key.form.allowed());
        failure.hint(format!("it must be {allowed}"))
    }
}

/// The schema and the code that reads it disagree: a bug here, not the user's mistake.
fn mismatch(path: &str) -> Failure {
    Failure::failed(format!("internal error: `{path}` does not have the type its reader expects"))
}
