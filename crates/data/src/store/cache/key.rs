//! What a cache's content depends on.

use twox_hash::XxHash3_128;

use crate::dataset::Options;
use crate::read::OpenedSource;
use crate::tokenize::Tokenizer;

/// Counts up when the same input gives other records: another layout, another template of our own.
const VERSION: u32 = 4;

/// Two equal keys mean equal content.
pub(crate) fn key(opened: &OpenedSource, tokenizer: &Tokenizer, options: &Options) -> u128 {
    let Options {
        content,
        format: _,
        columns,
        max_length: _,
        max_source_length: _,
        classes,
        over_long,
        bad_rows,
        hold_out,
        memory_bytes_max: _,
        workers: _,
    } = options;
    let max_length = options.max_lengths();
    let formats: Vec<&str> = opened.formats.iter().map(|of_file| of_file.format.name()).collect();
    let text = format!(
        "{VERSION}\n{}\n{formats:?} {:?}\n{content:?} {:?} {columns:?} {classes:?} {over_long:?} {bad_rows:?} {hold_out:?}\n{:032x}",
        opened.source.fingerprint(),
        opened.format_of,
        &*max_length,
        tokenizer.fingerprint(),
    );
    XxHash3_128::oneshot(text.as_bytes())
}

pub(crate) fn file_name(key: u128) -> String {
    format!("{key:032x}.tokens")
}
