//! Which way of keeping a dataset suits the machine, and why.

use std::fmt;
use std::path::Path;

use super::{Options, OverLong, Weighted, open_sources, pool};
use crate::error::DataError;
use crate::read::{Files, OpenedSource, RowReader};
use crate::store::Entry;
use crate::store::disk;
use crate::tokenize::BadRows;
use crate::tokenize::Encoder;
use crate::tokenize::Producer;
use crate::tokenize::Tokenizer;

/// How a dataset is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Memory,
    Cached,
    Streamed,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Cached => "cached",
            Self::Streamed => "streaming",
        })
    }
}

/// What was chosen, and the reason in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub mode: Mode,
    pub why: String,
    /// Of the tokenised data.
    pub estimate_bytes: u64,
}

/// What there is.
#[derive(Debug, Clone, Copy)]
pub struct Limits<'a> {
    /// Of the whole run.
    pub host_bytes: u64,
    /// Where a cache would lie.
    pub folder: &'a Path,
}

/// Data this small is kept in memory: a file would save nothing worth having.
const MEMORY_BYTES_MAX: u64 = 16 << 20;
/// And of the host's budget.
const MEMORY_SHARE_MAX: u64 = 16;
/// Left on a disk for everybody else.
const DISK_RESERVE_BYTES: u64 = 1 << 30;
/// Groups tokenised to estimate the size of the rest.
const SAMPLE_GROUPS: u64 = 4096;

/// Looks at the data's beginning, the budget and the disk.
pub fn choose(
    sources: Vec<Weighted>,
    tokenizer: &Tokenizer,
    options: &Options,
    limits: &Limits<'_>,
) -> Result<(Vec<Weighted>, Choice), DataError> {
    let (opened, weights) = open_sources(sources, options)?;
    let bytes = estimate(&opened, tokenizer, options)?;
    let choice = decide(bytes, limits.host_bytes, disk::free_bytes(limits.folder));
    let mut weights = weights.into_iter().flatten();
    let sources = opened.into_iter().map(|opened| Weighted { source: opened.source, weight: weights.next() }).collect();
    Ok((sources, choice))
}

fn decide(bytes: u64, host_bytes: u64, free: Option<u64>) -> Choice {
    let choice = |mode, why| Choice { mode, why, estimate_bytes: bytes };
    let size = mib(bytes);
    if bytes <= MEMORY_BYTES_MAX && bytes <= host_bytes / MEMORY_SHARE_MAX {
        return choice(Mode::Memory, format!("the tokenised data takes about {size}, little enough to hold"));
    }
    match free {
        Some(free) if free >= bytes + bytes / 10 + DISK_RESERVE_BYTES => choice(
            Mode::Cached,
            format!(
                "the tokenised data takes about {size} on disk, where {} are free, and hardly any memory",
                mib(free)
            ),
        ),
        Some(free) => choice(
            Mode::Streamed,
            format!("the tokenised data would take about {size} on disk, where only {} are free", mib(free)),
        ),
        None => choice(Mode::Streamed, "how much disk is free cannot be told".to_owned()),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

/// What the data takes once it is tokenised, judged by its beginning.
pub(crate) fn estimate(opened: &[OpenedSource], tokenizer: &Tokenizer, options: &Options) -> Result<u64, DataError> {
    // What is bad or too long is found where it is read in earnest.
    let options = Options { bad_rows: BadRows::Skip, over_long: OverLong::Truncate, ..*options };
    let pool = pool(1)?;
    let mut total = 0.0;
    for opened in opened {
        let files = Files::in_order(std::slice::from_ref(opened), options.hold_out);
        let encoders = vec![Encoder::new(tokenizer, opened.format)?];
        let mut producer = Producer::new(files, encoders, tokenizer, &options, &pool);
        let (mut groups, mut bytes, mut share) = (0, 0, 1.0);
        while groups < SAMPLE_GROUPS {
            let Some(group) = producer.next_group()? else {
                share = 1.0;
                break;
            };
            bytes += group.bytes.len() + group.entries.len() * size_of::<Entry>();
            groups += 1;
            // What was read ahead has not become groups yet.
            let used = producer.tally.counts.rows as f64 / producer.reader().rows().max(1) as f64;
            share = producer.reader().read_share() * used.min(1.0);
        }
        total += bytes as f64 / share.clamp(1e-9, 1.0);
    }
    Ok(total as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_data_stays_in_memory_large_data_goes_to_disk_if_there_is_room() {
        const GIB: u64 = 1 << 30;
        let check = |bytes, host, free, expected, reason: &str| {
            let choice = decide(bytes, host, free);
            assert_eq!(choice.mode, expected, "{choice:?}");
            assert!(choice.why.contains(reason), "{choice:?}");
        };
        check(1 << 20, GIB, Some(100 * GIB), Mode::Memory, "about 1.0 MiB");
        check(12 << 20, GIB / 8, Some(100 * GIB), Mode::Cached, "102400.0 MiB are free");
        check(5 * GIB, 64 * GIB, Some(100 * GIB), Mode::Cached, "about 5120.0 MiB");
        check(5 * GIB, 64 * GIB, Some(6 * GIB), Mode::Streamed, "only 6144.0 MiB");
        check(5 * GIB, 64 * GIB, None, Mode::Streamed, "cannot be told");
    }
}
