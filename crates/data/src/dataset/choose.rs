//! Which storage mode suits the machine, and why.

use std::fmt;
use std::path::Path;

use super::Options;
use super::sources::{IntoSources, Sources};
use crate::error::DataError;
use crate::tokenize::Tokenizer;

/// Where the tokenised data of a dataset is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageMode {
    Memory,
    Cached,
    Streamed,
}

impl fmt::Display for StorageMode {
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
    pub mode: StorageMode,
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

/// Data this small is held in memory: a file would save nothing worth having.
const MEMORY_BYTES_MAX: u64 = 16 << 20;
/// And of the host's budget.
const MEMORY_SHARE_MAX: u64 = 16;
/// Left on a disk for everybody else.
const DISK_RESERVE_BYTES: u64 = 1 << 30;
/// Looks at the data's beginning, the budget and the disk. The beginning goes into the dataset that is made of the sources.
pub fn choose(
    sources: impl IntoSources,
    tokenizer: &Tokenizer,
    options: &Options,
    limits: &Limits<'_>,
) -> Result<(Sources, Choice), DataError> {
    let mut sources = sources.into_sources(options)?;
    let bytes = sources.estimate(tokenizer, options)?;
    let choice = decide(bytes, limits.host_bytes, plimsoll_files::free_bytes(limits.folder));
    Ok((sources, choice))
}

fn decide(bytes: u64, host_bytes: u64, free: Option<u64>) -> Choice {
    let choice = |mode, why| Choice { mode, why, estimate_bytes: bytes };
    let size = mib(bytes);
    if bytes <= MEMORY_BYTES_MAX && bytes <= host_bytes / MEMORY_SHARE_MAX {
        return choice(StorageMode::Memory, format!("the tokenised data takes about {size}, little enough to hold"));
    }
    match free {
        Some(free) if free >= bytes + bytes / 10 + DISK_RESERVE_BYTES => choice(
            StorageMode::Cached,
            format!(
                "the tokenised data takes about {size} on disk, where {} are free, and hardly any memory",
                mib(free)
            ),
        ),
        Some(free) => choice(
            StorageMode::Streamed,
            format!("the tokenised data would take about {size} on disk, where only {} are free", mib(free)),
        ),
        None => choice(StorageMode::Streamed, "the free space on the disk is unknown".to_owned()),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
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
        check(1 << 20, GIB, Some(100 * GIB), StorageMode::Memory, "about 1.0 MiB");
        check(12 << 20, GIB / 8, Some(100 * GIB), StorageMode::Cached, "102400.0 MiB are free");
        check(5 * GIB, 64 * GIB, Some(100 * GIB), StorageMode::Cached, "about 5120.0 MiB");
        check(5 * GIB, 64 * GIB, Some(6 * GIB), StorageMode::Streamed, "only 6144.0 MiB");
        check(5 * GIB, 64 * GIB, None, StorageMode::Streamed, "is unknown");
    }
}
