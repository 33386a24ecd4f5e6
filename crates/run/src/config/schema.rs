//! The table of keys: what exists, what each may hold, its default and its help.
//!
//! The entries come from [`section!`](super::section), which also makes the typed structs.

use plimsoll_graph::OPTIMIZERS;
use plimsoll_train::TASKS;

use super::kind::{Kind, Range};
use super::run::RunConfig;
use super::section::Keys;
use super::words::Words;

/// A mapping with known keys.
#[derive(Debug)]
pub struct Section {
    pub keys: &'static [Key],
    /// Groups of keys of which only one may be set; a higher layer's choice replaces a lower one's.
    pub one_of: &'static [&'static [&'static str]],
}

#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub form: Form,
    /// In YAML. A key without one is left out when nobody sets it.
    pub default: Option<&'static str>,
    /// What other trainers call it; only ever used to suggest the name that is right here.
    pub also: &'static [&'static str],
    /// The lines of its doc comment.
    pub help: &'static [&'static str],
}

/// How a key may be written.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Leaf(Kind),
    /// Always present, if need be with defaults only.
    Section(&'static Section),
    /// Present only when it was given.
    Optional(&'static Section),
    /// A single value or a mapping.
    Either(Kind, &'static Section),
    /// A list of mappings.
    List(&'static Section),
    /// A mapping of free names to counts.
    Counts,
}

/// The whole run file.
pub const ROOT: &Section = RunConfig::SECTION;

impl Section {
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.keys.iter().map(|key| key.name).collect()
    }

    /// The other keys of the groups that `name` is in.
    pub fn rivals(&self, name: &str) -> impl Iterator<Item = &'static str> {
        let groups = self.one_of.iter().filter(move |group| group.contains(&name));
        let members = groups.flat_map(|group| group.iter().copied());
        let name = name.to_owned();
        members.filter(move |member| *member != name)
    }
}

impl Key {
    /// The help on one line.
    pub fn help(&self) -> String {
        let lines: Vec<&str> = self.help.iter().map(|line| line.trim()).collect();
        lines.join(" ").trim_end_matches('.').to_owned()
    }
}

impl Form {
    /// The keys below, where there are any.
    pub fn section(self) -> Option<&'static Section> {
        match self {
            Self::Section(section) | Self::Optional(section) | Self::Either(_, section) => Some(section),
            Self::Leaf(_) | Self::List(_) | Self::Counts => None,
        }
    }

    /// What is allowed, to stand after "must be".
    pub fn allowed(self) -> String {
        match self {
            Self::Leaf(kind) => kind.allowed(),
            Self::Either(kind, _) => format!("{} or a mapping", kind.allowed()),
            Self::List(below) => format!("a list of mappings of {}", below.names().join(", ")),
            Self::Counts => "a mapping of names to numbers of layers".to_owned(),
            Self::Section(_) | Self::Optional(_) => "a mapping".to_owned(),
        }
    }
}

/// The key at a dotted path.
pub fn find(path: &str) -> Option<&'static Key> {
    let (parents, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut section = ROOT;
    for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
        section = section.key(parent)?.form.section()?;
    }
    section.key(name)
}

/// Every path of the schema, parents before children.
pub fn paths() -> Vec<(String, &'static Key)> {
    fn collect(section: &'static Section, prefix: &str, found: &mut Vec<(String, &'static Key)>) {
        for key in section.keys {
            let path = joined(prefix, key.name);
            found.push((path.clone(), key));
            if let Some(below) = key.form.section() {
                collect(below, &path, found);
            }
        }
    }
    let mut found = Vec::new();
    collect(ROOT, "", &mut found);
    found
}

pub fn joined(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

// What an entry of `section!` may say about its key.

pub const fn text() -> Form {
    Form::Leaf(Kind::Text)
}

pub const fn texts() -> Form {
    Form::Leaf(Kind::Texts)
}

pub const fn boolean() -> Form {
    Form::Leaf(Kind::Bool)
}

/// At least 1.
pub const fn count() -> Form {
    Form::Leaf(Kind::COUNT)
}

/// A count that no run exceeds. With these limits no size computed from several of them overflows.
pub const fn up_to(max: u64) -> Form {
    Form::Leaf(Kind::Integer { min: 1, max })
}

pub const fn integer(min: u64, max: u64) -> Form {
    Form::Leaf(Kind::Integer { min, max })
}

pub const fn from_zero() -> Form {
    Form::Leaf(Kind::FROM_ZERO)
}

pub const fn number(range: Range) -> Form {
    Form::Leaf(Kind::Number(range))
}

pub const fn number_or_none(range: Range) -> Form {
    Form::Leaf(Kind::NumberOrNone(range))
}

pub const fn numbers(count: usize, range: Range) -> Form {
    Form::Leaf(Kind::Numbers(count, range))
}

pub const fn word<T: Words>() -> Form {
    Form::Leaf(Kind::Word(T::WORDS))
}

/// The names of a registry.
macro_rules! names_of {
    ($registry:expr) => {{
        let mut names = [""; $registry.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = $registry[index].0;
            index += 1;
        }
        names
    }};
}

pub const TASK_NAMES: [&str; TASKS.len()] = names_of!(TASKS);
pub const OPTIMIZER_NAMES: [&str; OPTIMIZERS.len()] = names_of!(OPTIMIZERS);

pub const fn word_of(words: &'static [&'static str]) -> Form {
    Form::Leaf(Kind::Word(words))
}

pub const fn size() -> Form {
    Form::Leaf(Kind::Size)
}

pub const fn rate() -> Form {
    Form::Leaf(Kind::Rate)
}

pub const fn classes() -> Form {
    Form::Leaf(Kind::Classes)
}

pub const fn sources() -> Form {
    Form::Leaf(Kind::Sources)
}

pub const fn budget() -> Form {
    Form::Leaf(Kind::Budget)
}

pub const fn host_budget() -> Form {
    Form::Leaf(Kind::HostBudget)
}

pub const fn span() -> Form {
    Form::Leaf(Kind::Span)
}

pub const fn section<T: Keys>() -> Form {
    Form::Section(T::SECTION)
}

pub const fn list<T: Keys>() -> Form {
    Form::List(T::SECTION)
}

pub const fn optional<T: Keys>() -> Form {
    Form::Optional(T::SECTION)
}

pub const fn either<T: Keys>(kind: Kind) -> Form {
    Form::Either(kind, T::SECTION)
}
