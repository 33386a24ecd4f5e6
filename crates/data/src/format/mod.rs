//! What a row means, whatever its columns are called.

mod column_names;
mod conversation;
mod label;
mod pairs;
mod row_format;

pub use column_names::ColumnNames;
pub(crate) use conversation::{CALLS, is_learnt};
pub use label::Classes;
pub use pairs::Preference;
pub(crate) use pairs::{ACCEPTS as PAIRS_ACCEPT, detects as detects_pairs};
pub(crate) use row_format::as_conversation;
pub use row_format::{Format, RowFormat, Sample};
