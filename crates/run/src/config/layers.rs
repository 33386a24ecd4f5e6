//! Precedence: flag over environment over file over default.

use std::path::Path;
use std::sync::Arc;

use super::check;
use super::kind::Kind;
use super::nearest::nearest;
use super::node::{Entry, Node, Tree};
use super::origin::Origin;
use super::paths;
use super::resolved::Resolved;
use super::schema::{self, Form, Key, Section};
use super::yaml;
use crate::failure::Failure;
use crate::quickstart::quickstart;

/// Where a layer above the defaults and below the environment comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Nothing: the defaults alone.
    Defaults,
    /// Its relative paths are relative to the folder it is in.
    File(&'a Path),
    /// A text built into the program; `name` stands where a file name would.
    Embedded { name: &'static str, text: &'a str },
}

/// What stands above the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Environment variables; those that do not begin with `PLIMSOLL_` are passed over.
    pub environment: Vec<(String, String)>,
    /// `KEY=VALUE` as given to `--set`; a later one wins.
    pub set: Vec<String>,
    pub flags: Vec<Flag>,
}

/// A flag that mirrors a key, such as `--gpu` for `memory.gpu`.
#[derive(Clone, Debug)]
pub struct Flag {
    pub name: &'static str,
    pub path: &'static str,
    pub value: String,
}

const PREFIX: &str = "PLIMSOLL_";

/// Reads, checks and merges all layers.
pub fn load(source: Source<'_>, overrides: &Overrides) -> Result<Resolved, Failure> {
    merged(source, above(overrides)?)
}

/// The run of a command: what its file says. Without a file it is the quickstart, unless something names a model or
/// training data; then nothing of the quickstart is left.
pub fn load_run(file: Option<&Path>, overrides: &Overrides) -> Result<Resolved, Failure> {
    let above = above(overrides)?;
    match file {
        Some(path) => merged(Source::File(path), above),
        None if !above.iter().any(|layer| names_model(layer) || layer.at("data.train").is_some()) => {
            merged(quickstart(), above)
        }
        None if above.iter().any(|layer| layer.at("model").is_some()) => merged(Source::Defaults, above),
        None => Err(Failure::config("`model` is missing: the quickstart's model is not used with other data")
            .hint("set it with --set model=MODEL, or give a run file; `plimsoll init` writes one to start from")),
    }
}

/// Whether a layer says which model, and not only something about it.
fn names_model(layer: &Node) -> bool {
    layer.at("model").is_some_and(|model| match &model.value {
        Tree::Map(_) => model.child("family").is_some(),
        value => !matches!(value, Tree::Null),
    })
}

/// What stands above the file, lowest first.
fn above(overrides: &Overrides) -> Result<Vec<Node>, Failure> {
    let mut above = vec![from_environment(&overrides.environment)?];
    for set in &overrides.set {
        above.push(from_set(set)?);
    }
    for flag in &overrides.flags {
        above.push(placed(flag.path, &flag.value, Origin::Flag { name: flag.name })?);
    }
    Ok(above)
}

fn merged(source: Source<'_>, above: Vec<Node>) -> Result<Resolved, Failure> {
    let mut tree = from_source(source)?;
    check::layer(&tree)?;
    if let Source::File(path) = source {
        paths::resolve(&mut tree, path.parent().unwrap_or(Path::new("")));
    }
    for layer in above {
        check::layer(&layer)?;
        merge(&mut tree, layer, schema::ROOT);
    }
    fill(&mut tree, schema::ROOT);
    Resolved::new(tree)
}

fn from_source(source: Source<'_>) -> Result<Node, Failure> {
    let (name, text) = match source {
        Source::Defaults => return Ok(Node::empty_map(Origin::Default)),
        Source::Embedded { name, text } => (name.to_owned(), text.to_owned()),
        Source::File(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::config(format!("cannot read {name}: {error}"))
                    .hint("`plimsoll init` writes a run file to start from")
            })?;
            (name, text)
        }
    };
    let name: Arc<str> = name.into();
    let place = |line, column| Origin::File { name: name.clone(), line, column };
    let tree = yaml::parse(&text, &place)?;
    Ok(if tree.is_null() { Node::empty_map(place(1, 1)) } else { tree })
}

/// Variables that say something about the machine or its user, not about the run.
const NOT_KEYS: [&str; 2] = ["PLIMSOLL_CUDA_PATH", "PLIMSOLL_LANG"];

/// Every `PLIMSOLL_*` variable, as one layer.
fn from_environment(variables: &[(String, String)]) -> Result<Node, Failure> {
    let known: Vec<(String, String)> = schema::all().into_iter().map(|(path, _)| (variable_of(&path), path)).collect();
    let mut tree = Node::empty_map(Origin::Default);
    let is_key = |name: &str| name.starts_with(PREFIX) && !NOT_KEYS.contains(&name);
    let mut ours: Vec<_> = variables.iter().filter(|(name, _)| is_key(name)).collect();
    ours.sort();
    for (name, value) in ours {
        let Some((_, path)) = known.iter().find(|(variable, _)| variable == name) else {
            return Err(unknown_variable(name, &known));
        };
        let layer = placed(path, value, Origin::Environment { variable: name.clone() })?;
        join(&mut tree, layer);
    }
    Ok(tree)
}

fn variable_of(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "_").to_uppercase())
}

fn unknown_variable(name: &str, known: &[(String, String)]) -> Failure {
    let failure = Failure::config(format!("environment variable {name} does not match any configuration key"));
    let tail = name[PREFIX.len()..].to_lowercase();
    let candidates = known.iter().map(|(variable, _)| &variable[PREFIX.len()..]);
    let lower: Vec<String> = candidates.map(str::to_lowercase).collect();
    let failure = match nearest(&tail, lower.iter().map(String::as_str)) {
        Some(near) => failure.hint(format!("did you mean {PREFIX}{}?", near.to_uppercase())),
        None => failure,
    };
    failure.hint(format!(
        "{PREFIX}* variables mirror the keys of the run file, such as {PREFIX}OPTIMIZER_LR for `optimizer.lr`; unset it"
    ))
}

fn from_set(text: &str) -> Result<Node, Failure> {
    let Some((key, value)) = text.split_once('=') else {
        return Err(
            Failure::usage(format!("--set {text}: expected KEY=VALUE")).hint("for example --set optimizer.lr=1e-4")
        );
    };
    let key = key.trim();
    if key.is_empty() || key.split('.').any(str::is_empty) {
        return Err(
            Failure::usage(format!("--set {text}: `{key}` is not a key")).hint("for example --set optimizer.lr=1e-4")
        );
    }
    placed(key, value, Origin::Set { key: key.to_owned() })
}

/// A tree with one value at `path`. Texts are taken as they are; all else is read as YAML.
fn placed(path: &str, text: &str, origin: Origin) -> Result<Node, Failure> {
    let is_text = schema::find(path).is_some_and(|key| matches!(key.form, Form::Leaf(Kind::Text | Kind::Path(_))));
    let node = if is_text {
        Node { value: Tree::Text(text.to_owned()), origin: origin.clone() }
    } else {
        yaml::parse(text, &|_, _| origin.clone())?
    };
    Ok(path.rsplit('.').fold(node, |node, key| node.wrapped(key)))
}

/// Puts two trees of one layer together, losing nothing, so that rivals are still found.
fn join(tree: &mut Node, other: Node) {
    let Tree::Map(entries) = other.value else { return };
    let Some(into) = tree.entries_mut() else { return };
    for entry in entries {
        match into.iter_mut().find(|known| known.key == entry.key) {
            Some(known) if matches!(known.node.value, Tree::Map(_)) => join(&mut known.node, entry.node),
            Some(known) => *known = entry,
            None => into.push(entry),
        }
    }
}

/// Lays a higher layer over the tree: mappings key by key, anything else replaced.
fn merge(tree: &mut Node, above: Node, section: &Section) {
    let Tree::Map(entries) = above.value else { return };
    let Some(into) = tree.entries_mut() else { return };
    for entry in entries {
        let Some(key) = section.key(&entry.key) else { continue };
        let rivals: Vec<&str> = section.rivals(key.name).collect();
        into.retain(|known| !rivals.contains(&known.key.as_str()));
        match into.iter_mut().find(|known| known.key == entry.key) {
            None => into.push(entry),
            Some(known) => merge_entry(known, entry, key),
        }
    }
}

fn merge_entry(known: &mut Entry, above: Entry, key: &Key) {
    let both_maps = matches!((&known.node.value, &above.node.value), (Tree::Map(_), Tree::Map(_)));
    match key.form.section() {
        Some(below) if both_maps => merge(&mut known.node, above.node, below),
        // An empty section above says nothing about what stands below it.
        Some(_) if above.node.is_null() => {}
        None if both_maps => join(&mut known.node, above.node),
        _ => *known = above,
    }
}

/// Adds what nobody set.
fn fill(tree: &mut Node, section: &'static Section) {
    let Some(entries) = tree.entries_mut() else { return };
    for key in section.keys {
        let index = entries.iter().position(|entry| entry.key == key.name);
        match index {
            Some(index) => fill_given(&mut entries[index].node, key),
            None => {
                let taken = section.rivals(key.name).any(|rival| entries.iter().any(|e| e.key == rival));
                if let Some(node) = default_node(key).filter(|_| !taken) {
                    let key_origin = Origin::Default;
                    entries.push(Entry { key: key.name.to_owned(), key_origin, node });
                }
            }
        }
    }
}

fn fill_given(node: &mut Node, key: &'static Key) {
    let Some(section) = key.form.section() else { return };
    if let Tree::Text(word) = &node.value {
        // `method: lora` is short for `method: {lora: {}}`.
        let named = section.key(word).and_then(|named| named.form.section());
        if named.is_some_and(|named| !named.keys.is_empty()) {
            *node = Node::empty_map(node.origin.clone()).wrapped(word);
        }
    }
    if node.is_null() {
        node.value = Tree::Map(Vec::new());
    }
    fill(node, section);
}

fn default_node(key: &'static Key) -> Option<Node> {
    match key.form {
        Form::Section(below) => {
            let mut node = Node::empty_map(Origin::Default);
            fill(&mut node, below);
            Some(node)
        }
        _ => {
            // A default that is not YAML would be a mistake in the schema; its test would find it.
            let text = key.default?;
            yaml::parse(text, &|_, _| Origin::Default).ok()
        }
    }
}
