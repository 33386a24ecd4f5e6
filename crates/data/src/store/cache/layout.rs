//! The bytes of a cache file.

use serde::{Deserialize, Serialize};

use crate::store::record::checksum;
use crate::store::{Entry, Totals};
use crate::tokenize::Counts;

const MAGIC: &[u8; 8] = b"PLMSTOK1";
pub(super) const HEADER_BYTES: u64 = 4096;
const ENTRY_BYTES: usize = 24;
pub(super) const PAGE_ENTRIES: usize = 128;
/// Of entries with their checksum; the last page is filled up with zeros.
pub(super) const PAGE_BYTES: usize = PAGE_ENTRIES * ENTRY_BYTES + 4;

/// What the file holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub key: String,
    /// Entries of the index: each sequence has one per stream.
    pub records: u64,
    pub record_bytes: u64,
    pub totals: Totals,
    pub counts: Counts,
}

impl Header {
    pub(super) fn index_offset(&self) -> u64 {
        HEADER_BYTES + self.record_bytes
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.index_offset() + self.records.div_ceil(PAGE_ENTRIES as u64) * PAGE_BYTES as u64
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        // Five messages of 240 characters fit even in an alphabet of four bytes a letter, escapes aside.
        if text.len() + 24 > HEADER_BYTES as usize {
            let mut short = self.clone();
            short.counts.bad_first.clear();
            text = serde_json::to_vec(&short).unwrap_or_default();
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(checksum(&text).to_le_bytes());
        bytes.extend(text);
        bytes.resize(HEADER_BYTES as usize, 0);
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        parse(bytes)
    }

    /// The key alone, also of a header with other fields: a cache of an earlier version is ours too.
    pub(super) fn key_in(bytes: &[u8]) -> Option<String> {
        #[derive(Deserialize)]
        struct Key {
            key: String,
        }
        parse::<Key>(bytes).map(|header| header.key)
    }
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk()?;
    let (sum, rest) = rest.split_first_chunk()?;
    let text = rest.get(..u32::from_le_bytes(*length) as usize)?;
    (checksum(text) == u32::from_le_bytes(*sum)).then(|| serde_json::from_slice(text).ok())?
}

pub(super) fn put_entry(entry: &Entry, out: &mut Vec<u8>) {
    out.extend(entry.offset.to_le_bytes());
    for number in [entry.bytes, entry.tokens, entry.loss, entry.checksum] {
        out.extend(number.to_le_bytes());
    }
}

/// Completes a page: zeros for the entries that are missing, then the checksum.
pub(super) fn close_page(page: &mut Vec<u8>) {
    page.resize(PAGE_BYTES - 4, 0);
    page.extend(checksum(page).to_le_bytes());
}

pub(super) fn page_is_sound(page: &[u8]) -> bool {
    let Some((entries, sum)) = page.split_last_chunk() else { return false };
    checksum(entries) == u32::from_le_bytes(*sum)
}

/// The entry at `index` of a page.
pub(super) fn entry_in(page: &[u8], index: usize) -> Entry {
    let bytes = &page[index * ENTRY_BYTES..(index + 1) * ENTRY_BYTES];
    let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let offset = u64::from(number(0)) | u64::from(number(4)) << 32;
    Entry { offset, bytes: number(8), tokens: number(12), loss: number(16), checksum: number(20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(bad_first: Vec<String>) -> Header {
        let counts = Counts { rows: 3, bad: 9, bad_first, ..Counts::default() };
        let key = format!("{:032x}", 7);
        let totals = Totals { sequences: 129, tokens: [5, 0], longest: [3, 0], loss_tokens: 4, content: 9 };
        Header { key, records: 129, record_bytes: 100, totals, counts }
    }

    #[test]
    fn headers_survive_and_damage_is_seen() {
        let whole = header(vec!["a, row 1: bad".into()]);
        let mut bytes = whole.to_bytes();
        assert_eq!((bytes.len(), Header::from_bytes(&bytes)), (4096, Some(whole.clone())));
        assert_eq!(whole.file_bytes(), 4096 + 100 + 2 * PAGE_BYTES as u64);
        for at in [0, 9, 13, 20] {
            bytes[at] ^= 1;
            assert_eq!(Header::from_bytes(&bytes), None, "byte {at}");
            bytes[at] ^= 1;
        }
        assert_eq!(Header::from_bytes(&bytes[..40]), None);
        assert_eq!(Header::key_in(&bytes), Some(whole.key));
        // Names that would not fit are left out, not cut in the middle.
        let long = header(vec!["\u{1}".repeat(240); 5]);
        let short = Header::from_bytes(&long.to_bytes()).expect("readable");
        assert_eq!((short.counts.bad, short.counts.bad_first.len()), (9, 0));
    }

    #[test]
    fn entries_survive() {
        let entry = |n: u32| Entry { offset: u64::from(n) << 33, bytes: n, tokens: n + 1, loss: n + 2, checksum: !n };
        let mut page = Vec::new();
        (0..100).for_each(|n| put_entry(&entry(n), &mut page));
        close_page(&mut page);
        assert_eq!(page.len(), PAGE_BYTES);
        assert!(page_is_sound(&page));
        assert_eq!((entry_in(&page, 0), entry_in(&page, 99)), (entry(0), entry(99)));
        page[500] ^= 4;
        assert!(!page_is_sound(&page));
    }
}
