//! What a single key may hold, and how a node is read as that.

use std::path::PathBuf;

use plimsoll_data::Classes;

use super::nearest::nearest;
use super::node::{Node, Tree};
use super::schema::joined;
use super::size::{Budget, BudgetError, HostBudget, Span};
use super::sources::{self, SourceEntry};
use crate::failure::Failure;

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Text,
    Bool,
    /// A whole number within both bounds.
    Integer {
        min: u64,
        max: u64,
    },
    Number(Range),
    /// A number, or the word `none`.
    NumberOrNone(Range),
    /// So many numbers in a list.
    Numbers(usize, Range),
    Word(&'static [&'static str]),
    /// One text or a list of them.
    Texts,
    /// How many classes there are, or their names.
    Classes,
    /// One path, a list of them, or a list of paths with weights.
    Sources,
    /// Bytes.
    Size,
    /// Bytes a second.
    Rate,
    Budget,
    /// A budget, or one for each kind of device.
    HostBudget,
    Span,
}

/// A range of numbers with a closed or open lower and upper end.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    min: f64,
    max: f64,
    above_min: bool,
    below_max: bool,
}

impl Range {
    pub const ABOVE_ZERO: Self = Self::new(0.0, f64::INFINITY).above_min();
    pub const FROM_ZERO: Self = Self::new(0.0, f64::INFINITY);
    pub const ABOVE_ONE: Self = Self::new(1.0, f64::INFINITY).above_min();
    /// From 0 to 1, both allowed.
    pub const FRACTION: Self = Self::new(0.0, 1.0);
    /// From 0 to below 1.
    pub const BELOW_ONE: Self = Self::new(0.0, 1.0).below_max();
    /// Between 0 and 1, neither allowed.
    pub const BETWEEN: Self = Self::new(0.0, 1.0).above_min().below_max();

    pub const fn new(min: f64, max: f64) -> Self {
        Self { min, max, above_min: false, below_max: false }
    }

    const fn above_min(mut self) -> Self {
        self.above_min = true;
        self
    }

    const fn below_max(mut self) -> Self {
        self.below_max = true;
        self
    }

    fn contains(&self, value: f64) -> bool {
        let low = if self.above_min { value > self.min } else { value >= self.min };
        let high = if self.below_max { value < self.max } else { value <= self.max };
        value.is_finite() && low && high
    }

    fn describe(&self) -> String {
        let Self { min, max, .. } = self;
        match (max.is_finite(), self.above_min, self.below_max) {
            (false, true, _) => format!("above {min}"),
            (false, false, _) => format!("of at least {min}"),
            (true, true, true) => format!("above {min} and below {max}"),
            (true, true, false) => format!("above {min} and up to {max}"),
            (true, false, true) => format!("from {min} to below {max}"),
            (true, false, false) => format!("from {min} to {max}"),
        }
    }
}

/// A value read as its kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Bool(bool),
    Integer(u64),
    Number(f64),
    /// The word `none`.
    None,
    Numbers(Vec<f64>),
    Texts(Vec<String>),
    Classes(Classes),
    Sources(Vec<SourceEntry>),
    Budget(Budget),
    HostBudget(HostBudget),
    Span(Span),
}

impl Kind {
    pub const COUNT: Self = Self::Integer { min: 1, max: MAX_COUNT };
    pub const FROM_ZERO: Self = Self::Integer { min: 0, max: MAX_COUNT };

    /// What is allowed, to stand after "must be".
    pub fn allowed(&self) -> String {
        match self {
            Self::Text => "a string".to_owned(),
            Self::Bool => "`true` or `false`".to_owned(),
            Self::Integer { min, max: MAX_COUNT } => format!("a whole number of at least {min}"),
            Self::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Self::Number(range) => format!("a number {}", range.describe()),
            Self::NumberOrNone(range) => format!("a number {} or `none`", range.describe()),
            Self::Numbers(count, range) => {
                format!("a list of {count} numbers, each {}", range.describe())
            }
            Self::Word(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
                match quoted.as_slice() {
                    [only] => only.clone(),
                    [first @ .., last] => format!("{} or {last}", first.join(", ")),
                    [] => String::new(),
                }
            }
            Self::Texts => "a string or a list of strings".to_owned(),
            Self::Classes => "the number of classes or a list of their names".to_owned(),
            Self::Sources => sources::ALLOWED.to_owned(),
            Self::Size => "a size such as 8GiB".to_owned(),
            Self::Rate => "a rate such as 400GB/s".to_owned(),
            Self::Budget | Self::HostBudget => "a size, a percentage or `auto`".to_owned(),
            Self::Span => "a fraction of the run (below 1) or a whole number of steps".to_owned(),
        }
    }

    /// Reads a node as this kind; the error names the place, the key, the value and what is allowed.
    pub fn read(&self, node: &Node, path: &str) -> Result<Value, Failure> {
        if node.is_null() {
            return Err(Failure::config_at(path, &node.origin, format!("`{path}` has no value"))
                .hint(format!("it must be {}", self.allowed())));
        }
        if let Self::Budget = self {
            return read_budget(node, path);
        }
        if let Self::HostBudget = self {
            return read_host_budget(node, path);
        }
        if let Self::Sources = self {
            return sources::read(node, path).map(Value::Sources);
        }
        self.value(node).ok_or_else(|| {
            let failure = wrong(node, path, &self.allowed());
            match (self, &node.value) {
                (Self::Word(words), Tree::Text(text)) => match nearest(text, words.iter().copied()) {
                    Some(word) => failure.hint(format!("did you mean `{word}`?")),
                    None => failure,
                },
                _ => failure,
            }
        })
    }

    fn value(&self, node: &Node) -> Option<Value> {
        Some(match (self, &node.value) {
            (Self::Text, _) => Value::Text(text(node)?),
            (Self::Bool, Tree::Bool(value)) => Value::Bool(*value),
            (Self::Integer { min, max }, Tree::Number { integer, .. }) => {
                let value = u64::try_from((*integer)?).ok()?;
                Value::Integer((*min..=*max).contains(&value).then_some(value)?)
            }
            (Self::Number(range) | Self::NumberOrNone(range), Tree::Number { value, .. }) => {
                Value::Number(range.contains(*value).then_some(*value)?)
            }
            (Self::NumberOrNone(_), Tree::Text(word)) if word == "none" => Value::None,
            (Self::Numbers(count, range), Tree::List(items)) if items.len() == *count => {
                let numbers = items.iter().map(|item| match &item.value {
                    Tree::Number { value, .. } if range.contains(*value) => Some(*value),
                    _ => None,
                });
                Value::Numbers(numbers.collect::<Option<_>>()?)
            }
            (Self::Word(words), Tree::Text(word)) if words.contains(&word.as_str()) => Value::Text(word.clone()),
            (Self::Texts, Tree::List(items)) if !items.is_empty() => {
                Value::Texts(items.iter().map(text).collect::<Option<_>>()?)
            }
            (Self::Texts, _) => Value::Texts(vec![text(node)?]),
            (Self::Size, _) => Value::Integer(bytes_in(&text(node)?)?),
            (Self::Rate, Tree::Text(rate)) => Value::Integer(bytes_in(rate.strip_suffix("/s")?)?),
            (Self::Classes, Tree::Number { integer, .. }) => {
                let count = u32::try_from((*integer)?).ok()?;
                Value::Classes(Classes::Count((1..=CLASSES_MAX).contains(&count).then_some(count)?))
            }
            (Self::Classes, Tree::List(items)) if (1..=CLASSES_MAX as usize).contains(&items.len()) => {
                Value::Classes(Classes::named(items.iter().map(text).collect::<Option<Vec<_>>>()?))
            }
            (Self::Span, Tree::Number { value, integer, .. }) => Value::Span(match integer {
                Some(steps) => Span::Steps(u64::try_from(*steps).ok()?),
                None => Span::Fraction(Range::BELOW_ONE.contains(*value).then_some(*value)?),
            }),
            _ => return None,
        })
    }
}

/// A head has a row for each.
const CLASSES_MAX: u32 = 1 << 20;

/// Counts fit everywhere they go, so that products of a few of them can be checked in 128 bits.
const MAX_COUNT: u64 = i64::MAX as u64;

/// `PLACE: KEY must be ALLOWED, not VALUE`.
pub fn wrong(node: &Node, path: &str, allowed: &str) -> Failure {
    Failure::config_at(path, &node.origin, format!("`{path}` must be {allowed}, not {}", node.shown()))
}

/// Numbers and booleans are texts too where a text is asked for (`name: 7`), as they were written.
fn text(node: &Node) -> Option<String> {
    match &node.value {
        Tree::Text(text) if !text.trim().is_empty() => Some(text.clone()),
        Tree::Number { text, .. } => Some(text.clone()),
        Tree::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

fn bytes_in(text: &str) -> Option<u64> {
    match Budget::parse(text) {
        Ok(Budget::Bytes(bytes)) => Some(bytes),
        _ => None,
    }
}

fn read_budget(node: &Node, path: &str) -> Result<Value, Failure> {
    text(node)
        .ok_or(BudgetError::Malformed)
        .and_then(|text| Budget::parse(&text))
        .map(Value::Budget)
        .map_err(|error| wrong(node, path, &Kind::Budget.allowed()).hint(error.to_string()))
}

/// A mapping `{cpu: SIZE, gpu: SIZE}` gives a budget for each kind of device; what it leaves out is automatic.
fn read_host_budget(node: &Node, path: &str) -> Result<Value, Failure> {
    let Tree::Map(entries) = &node.value else {
        return Ok(match read_budget(node, path)? {
            Value::Budget(budget) => Value::HostBudget(HostBudget::both(budget)),
            other => other,
        });
    };
    let mut budgets = HostBudget::both(Budget::Auto);
    for entry in entries {
        let path = joined(path, &entry.key);
        let known = match entry.key.as_str() {
            "cpu" => &mut budgets.cpu,
            "gpu" => &mut budgets.gpu,
            _ => {
                return Err(Failure::config_at(&path, &entry.key_origin, format!("unknown key `{path}`"))
                    .hint("expected one of: cpu, gpu"));
            }
        };
        if let Value::Budget(budget) = Kind::Budget.read(&entry.node, &path)? {
            *known = budget;
        }
    }
    Ok(Value::HostBudget(budgets))
}

/// A Rust type that a [`Value`] can be read as; `None` is a mismatch between schema and reader.
pub trait FromValue: Sized {
    fn from_value(value: Value) -> Option<Self>;

    /// What stands for a key that has no value and no default.
    fn absent() -> Option<Self> {
        None
    }
}

macro_rules! from_value {
    ($($variant:ident => $type:ty),+ $(,)?) => {
        $(impl FromValue for $type {
            fn from_value(value: Value) -> Option<Self> {
                match value {
                    Value::$variant(value) => Some(value),
                    _ => None,
                }
            }
        })+
    };
}

from_value! {
    Text => String,
    Bool => bool,
    Integer => u64,
    Number => f64,
    Budget => Budget,
    HostBudget => HostBudget,
    Span => Span,
}

impl FromValue for Classes {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Classes(classes) => Some(classes),
            _ => None,
        }
    }

    fn absent() -> Option<Self> {
        Some(Self::Any)
    }
}

impl FromValue for PathBuf {
    fn from_value(value: Value) -> Option<Self> {
        String::from_value(value).map(Self::from)
    }
}

impl FromValue for [f64; 2] {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Numbers(values) => values.try_into().ok(),
            _ => None,
        }
    }
}

impl FromValue for Vec<String> {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Texts(texts) => Some(texts),
            _ => None,
        }
    }

    fn absent() -> Option<Self> {
        Some(Vec::new())
    }
}

impl FromValue for Vec<SourceEntry> {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Sources(sources) => Some(sources),
            _ => None,
        }
    }

    fn absent() -> Option<Self> {
        Some(Vec::new())
    }
}
