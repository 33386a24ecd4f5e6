//! The class of a row.

use std::fmt::Display;
use std::sync::Arc;

use serde_json::Value;

use super::row_format::{missing, present};
use crate::error::DataError;
use crate::read::{Row, kind};
use crate::visible::visible;

/// Columns with a row's class, in the order they are looked for.
const COLUMNS: [&str; 3] = ["label", "labels", "class"];

/// The classes that rows may have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Classes {
    /// Any integer from 0.
    #[default]
    Any,
    /// Integers below this number.
    Count(u32),
    /// One of these names, or its index.
    Named(Arc<[String]>),
}

impl Classes {
    pub fn named<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::Named(names.into_iter().map(Into::into).collect())
    }

    /// How many there are; `None` where that is not known.
    pub fn count(&self) -> Option<usize> {
        match self {
            Self::Any => None,
            Self::Count(count) => Some(*count as usize),
            Self::Named(names) => Some(names.len()),
        }
    }

    /// The class of a row.
    pub(crate) fn read(&self, row: &Row) -> Result<i32, DataError> {
        let column = COLUMNS.into_iter().find_map(|name| Some((name, present(row, name)?)));
        let Some((column, value)) = column else {
            return Err(missing(row, "a class", "`label`, `labels` or `class`"));
        };
        let bad = |reason: String| DataError::BadLabel { at: row.at.clone(), reason };
        match value {
            Value::String(name) => match (self.index_of(name), name.parse()) {
                (Ok(index), _) => Ok(index),
                // Tables of text write numbers as text.
                (_, Ok(number)) => self.check(column, Some(number), name).map_err(bad),
                (Err(reason), _) => Err(bad(reason)),
            },
            Value::Number(number) => self.check(column, number.as_u64(), number).map_err(bad),
            other => Err(bad(format!("`{column}` is {}, expected an integer or the name of a class", kind(other)))),
        }
    }

    fn check(&self, column: &str, class: Option<u64>, shown: impl Display) -> Result<i32, String> {
        let limit = self.count().unwrap_or(i32::MAX as usize);
        let class = class.and_then(|class| usize::try_from(class).ok()).filter(|class| *class < limit);
        class
            .map(|class| class as i32)
            .ok_or_else(|| format!("`{column}` is {shown}, expected an integer from 0 to {}", limit.saturating_sub(1)))
    }

    fn index_of(&self, name: &str) -> Result<i32, String> {
        let Self::Named(names) = self else {
            return Err(format!("the class is {name:?} and the classes are not named"));
        };
        let index = names.iter().position(|known| known == name);
        index
            .map(|index| index as i32)
            .ok_or_else(|| format!("unknown class `{}`; expected one of {}", visible(name), names.join(", ")))
    }
}
