//! What a cache's content depends on.

use twox_hash::XxHash3_128;

use crate::dataset::Options;
use crate::supply::Part;
use crate::tokenizer::Tokenizer;

/// Counts up when the same input gives other records: another layout, another template of our own.
const VERSION: u32 = 1;

/// Two equal keys mean equal content.
pub(crate) fn key(part: &Part, tokenizer: &Tokenizer, options: &Options) -> u128 {
    let Options { task, format: _, max_length, over_long, bad_rows, hold_out, workers: _ } = options;
    let text = format!(
        "{VERSION}\n{}\n{task:?} {} {max_length} {over_long:?} {bad_rows:?} {hold_out:?}\n{:032x}",
        part.source.fingerprint(),
        part.shape.name(),
        tokenizer.fingerprint(),
    );
    XxHash3_128::oneshot(text.as_bytes())
}

pub(crate) fn file_name(key: u128) -> String {
    format!("{key:032x}.tokens")
}
