//! What became of the rows, and how many of them may be bad.

use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::format::RowFormat;
use crate::visible::visible;

/// What to do with rows that cannot be read or tokenised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BadRows {
    /// The first one is an error.
    Fail,
    /// They are left out and counted.
    Skip,
    /// They are left out and counted as long as they are at most this share of the rows.
    Share(f64),
}

impl Default for BadRows {
    fn default() -> Self {
        Self::Share(0.01)
    }
}

/// What became of the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// What the rows were taken for; of several sources, the first one's.
    pub format: RowFormat,
    pub counts: Counts,
}

impl std::ops::Deref for Summary {
    type Target = Counts;

    fn deref(&self) -> &Counts {
        &self.counts
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Good and bad ones, those of the other side not counted.
    pub rows: u64,
    /// Rows that are on the other side of a division (`Options::hold_out`).
    pub other_side: u64,
    pub truncated: u64,
    pub skipped: u64,
    /// Pairs left out because their two sides are the same (`Content::Pairs`).
    pub identical: u64,
    /// Tokens behind the last full sequence, left out (`Content::Text`).
    pub tail_tokens: u64,
    /// Rows left out because they could not be read or tokenised.
    pub bad: u64,
    /// What was wrong with the first of them, with file and row.
    pub bad_first: Vec<String>,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.rows += other.rows;
        self.other_side += other.other_side;
        self.truncated += other.truncated;
        self.skipped += other.skipped;
        self.identical += other.identical;
        self.tail_tokens += other.tail_tokens;
        self.bad += other.bad;
        let room = NAMED_MAX.saturating_sub(self.bad_first.len());
        self.bad_first.extend(other.bad_first.iter().take(room).cloned());
    }
}

/// How many bad rows are named.
const NAMED_MAX: usize = 5;
/// Of each one's message.
const NAME_CHARS_MAX: usize = 240;
/// A few bad rows at the beginning say nothing about the share.
const HOPELESS_MIN: u64 = 100;

/// Counts rows and holds them against the policy.
pub(crate) struct Tally {
    policy: BadRows,
    pub counts: Counts,
    /// The first bad row's error, for when it is the only one.
    first: Option<DataError>,
}

impl Tally {
    pub(crate) fn new(policy: BadRows) -> Self {
        Self { policy, counts: Counts::default(), first: None }
    }

    /// A row that cannot be used. `read_share` is how much of the data has been read, as far as that is known.
    pub(crate) fn bad(&mut self, error: DataError, read_share: f64) -> Result<(), DataError> {
        let lost = error.rows_lost();
        self.counts.rows += lost;
        self.counts.bad += lost;
        if self.policy == BadRows::Fail {
            return Err(error);
        }
        if self.counts.bad_first.len() < NAMED_MAX {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            self.counts.bad_first.push(visible(line).chars().take(NAME_CHARS_MAX).collect());
        }
        self.first.get_or_insert(error);
        if let BadRows::Share(share) = self.policy {
            // What all rows will be, if the rest is like what was read.
            let expected = self.counts.rows as f64 / read_share.clamp(1e-9, 1.0);
            if self.counts.bad >= HOPELESS_MIN && self.counts.bad as f64 > 2.0 * share * expected {
                return Err(self.too_many(share));
            }
        }
        Ok(())
    }

    /// At the end of the data.
    pub(crate) fn finish(&mut self) -> Result<(), DataError> {
        match self.policy {
            BadRows::Share(share) if self.counts.bad as f64 > share * self.counts.rows as f64 => {
                Err(self.too_many(share))
            }
            _ => Ok(()),
        }
    }

    fn too_many(&mut self, share: f64) -> DataError {
        let Counts { rows, bad, bad_first, .. } = &self.counts;
        match self.first.take() {
            Some(only) if *bad == 1 => only,
            _ => DataError::TooManyBadRows {
                bad: *bad,
                rows: *rows,
                allowed_percent: share * 100.0,
                named: bad_first.join("\n  "),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Place;
    use std::path::Path;
    use std::sync::Arc;

    fn bad(row: u64) -> DataError {
        DataError::NotUtf8 { at: Place { file: Arc::from(Path::new("a.jsonl")), row } }
    }

    /// Every `period`-th of `rows` rows is bad.
    fn run(policy: BadRows, rows: u64, period: u64) -> (Result<(), DataError>, Counts) {
        let mut tally = Tally::new(policy);
        let mut run = || {
            for row in 1..=rows {
                if row.is_multiple_of(period) {
                    tally.bad(bad(row), row as f64 / rows as f64)?;
                } else {
                    tally.counts.rows += 1;
                }
            }
            tally.finish()
        };
        (run(), tally.counts)
    }

    #[test]
    fn the_share_decides() {
        assert!(run(BadRows::Share(0.01), 1000, 100).0.is_ok());
        let (result, counts) = run(BadRows::Share(0.01), 1000, 50);
        let message = result.expect_err("2 %").to_string();
        for part in ["20 of 1000 rows", "1 %", "a.jsonl, row 50", "a.jsonl, row 250"] {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
        assert_eq!((counts.rows, counts.bad, counts.bad_first.len()), (1000, 20, NAMED_MAX));
        assert!(run(BadRows::Skip, 1000, 2).0.is_ok());
    }

    #[test]
    fn a_single_one_is_named_as_it_is() {
        assert_eq!(run(BadRows::Share(0.01), 4, 4).0.expect_err("25 %").to_string(), bad(4).to_string());
        let (result, counts) = run(BadRows::Fail, 1000, 3);
        assert_eq!((result.expect_err("bad").to_string(), counts.rows), (bad(3).to_string(), 3));
    }

    #[test]
    fn a_hopeless_file_ends_early() {
        let (result, counts) = run(BadRows::Share(0.01), 1_000_000, 2);
        assert!(result.is_err());
        assert!(counts.rows < 100_000, "{}", counts.rows);
    }
}
