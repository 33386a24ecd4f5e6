//! The configuration after all layers, with the origin of every value.

use super::model::ModelSource;
use super::node::Node;
use super::origin::Origin;
use super::paths;
use super::reader::Reader;
use super::render;
use super::run::RunConfig;
use super::section::Keys;
use crate::failure::Failure;

#[derive(Clone, Debug)]
pub struct Resolved {
    pub run: RunConfig,
    tree: Node,
}

/// One value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginRow {
    pub path: String,
    pub value: String,
    pub origin: Origin,
}

impl Resolved {
    pub(super) fn new(tree: Node) -> Result<Self, Failure> {
        Ok(Self { run: RunConfig::read(&Reader::root(&tree))?, tree })
    }

    /// Where the value at a dotted path came from; `None` where nobody set it and it has no default.
    pub fn origin(&self, path: &str) -> Option<&Origin> {
        self.tree.at(path).map(|node| &node.origin)
    }

    /// Every value with its origin, in the schema's order.
    pub fn origins(&self) -> Vec<OriginRow> {
        render::rows(&self.tree)
    }

    /// The model's name or folder; `None` where it is given by its shape.
    pub fn model_name(&self) -> Option<String> {
        match &self.run.model {
            ModelSource::Name(name) => Some(name.clone()),
            ModelSource::Shape(_) => None,
        }
    }

    /// As YAML, each value with its origin behind it; reading it back gives the same run.
    pub fn to_yaml(&self) -> String {
        render::yaml(&self.tree)
    }

    /// As [`Self::to_yaml`], with every path absolute, so that it is the same run wherever the file is put.
    pub fn to_yaml_anywhere(&self) -> String {
        let mut tree = self.tree.clone();
        if let Ok(here) = std::env::current_dir() {
            paths::resolve(&mut tree, &here);
        }
        render::yaml(&tree)
    }

    /// A configuration error (exit code 2) that points at the value of `path`.
    pub fn invalid(&self, path: &str, message: impl std::fmt::Display) -> Failure {
        let origin = self.origin(path).unwrap_or(&Origin::Default);
        Failure::config_at(path, origin, message.to_string())
    }

    /// A value that is part of the format but not yet of this version (exit code 2).
    /// `supported` lists what can stand at `path` instead.
    pub fn unsupported(&self, path: &str, supported: &[&str]) -> Failure {
        let shown = self.tree.at(path).map_or_else(|| "nothing".to_owned(), Node::shown);
        let failure = self.invalid(path, format!("`{path}` is {shown}, which is not supported yet"));
        if supported.is_empty() {
            failure.hint(format!("remove `{path}`"))
        } else {
            failure.hint(format!("supported: {}", supported.join(", ")))
        }
    }
}
