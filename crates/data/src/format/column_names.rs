//! Which of the user's columns stand for the ones that formats know.

use super::row_format::COLUMNS;
use crate::error::DataError;
use crate::read::Row;

/// `prompt` → `question`: the rows' `question` is read as `prompt`. Columns that are not named keep their meaning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnNames(Vec<(String, String)>);

impl ColumnNames {
    /// Pairs of a known column and the name it has in the rows.
    pub fn new<K: Into<String>, N: Into<String>>(pairs: impl IntoIterator<Item = (K, N)>) -> Result<Self, DataError> {
        let mut names: Vec<(String, String)> = Vec::new();
        for (known, own) in pairs {
            let (known, own) = (known.into(), own.into());
            if !COLUMNS.contains(&known.as_str()) {
                return Err(DataError::UnknownColumn { known, allowed: COLUMNS.join(", ") });
            }
            if names.iter().any(|(before, _)| *before == known) {
                return Err(DataError::ColumnTwice { known });
            }
            names.push((known, own));
        }
        Ok(Self(names))
    }

    /// The known columns that are read from others, with the others' names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(known, own)| (known.as_str(), own.as_str()))
    }

    /// Whether some format may use a column of this name.
    pub(crate) fn uses(&self, column: &str) -> bool {
        COLUMNS.contains(&column) || self.iter().any(|(_, own)| own == column)
    }

    /// A column that is named takes the place of one that is called so: what was there is not what the user means.
    pub(crate) fn apply(&self, row: &mut Row) {
        let columns = &mut row.columns;
        let values: Vec<_> = self.iter().map(|(_, own)| columns.get(own).cloned()).collect();
        for (known, own) in self.iter() {
            columns.shift_remove(known);
            columns.shift_remove(own);
        }
        for ((known, _), value) in self.iter().zip(values) {
            if let Some(value) = value {
                columns.insert(known.to_owned(), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Place;
    use serde_json::{Value, json};
    use std::path::Path;
    use std::sync::Arc;

    #[track_caller]
    fn check(names: &[(&str, &str)], columns: Value, expected: Value) {
        let Value::Object(columns) = columns else { panic!("no object") };
        let mut row = Row { at: Place { file: Arc::from(Path::new("x")), row: 1 }, columns };
        ColumnNames::new(names.iter().copied()).expect("known").apply(&mut row);
        assert_eq!(Value::Object(row.columns), expected);
    }

    #[test]
    fn named_columns_take_the_place_of_others() {
        check(&[], json!({"a": 1}), json!({"a": 1}));
        check(
            &[("prompt", "question"), ("response", "reply")],
            json!({"id": 3, "question": "q", "reply": "r", "prompt": "other"}),
            json!({"id": 3, "prompt": "q", "response": "r"}),
        );
        // Two change places, one is used twice, one is not there.
        check(
            &[("prompt", "response"), ("response", "prompt")],
            json!({"prompt": 1, "response": 2}),
            json!({"prompt": 2, "response": 1}),
        );
        check(
            &[("prompt", "x"), ("text", "x"), ("system", "y")],
            json!({"x": 1, "system": 2}),
            json!({"prompt": 1, "text": 1}),
        );
    }

    #[test]
    fn unknown_and_doubled_names_are_refused() {
        let message =
            |names: &[(&str, &str)]| ColumnNames::new(names.iter().copied()).expect_err("refused").to_string();
        assert!(message(&[("promt", "q")]).contains("`promt`"));
        assert!(message(&[("prompt", "q"), ("prompt", "r")]).contains("twice"));
    }
}
