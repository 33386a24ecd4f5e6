//! Counts of words, of which only the frequent ones matter.

use ahash::AHashMap;
use compact_str::CompactString;
use rayon::prelude::*;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use super::failed;
use crate::error::DataError;

/// A word longer than this is no word: data in base 64, a line of dashes. It is left out.
const WORD_BYTES_MAX: usize = 256;

/// Counts with a limit on how many words there are. Above it, the rarest are dropped until three quarters are left; a word
/// that comes back starts from nothing, so a count is too low by at most the counts dropped with it, and words frequent
/// enough to matter for a vocabulary are never among them.
pub(super) struct Words {
    counts: AHashMap<CompactString, u64>,
    words_max: usize,
    dropped: u64,
}

impl Words {
    pub(super) fn new(words_max: usize) -> Self {
        Self { counts: AHashMap::new(), words_max: words_max.max(1), dropped: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn into_counts(self) -> AHashMap<CompactString, u64> {
        self.counts
    }

    pub(super) fn add(&mut self, texts: &[String], tokenizer: &tokenizers::Tokenizer) -> Result<(), DataError> {
        let share = texts.len().div_ceil(rayon::current_num_threads()).max(1);
        let parts: Vec<Result<AHashMap<CompactString, u64>, DataError>> =
            texts.par_chunks(share).map(|part| count(part, tokenizer)).collect();
        for part in parts {
            for (word, count) in part? {
                *self.counts.entry(word).or_default() += count;
            }
        }
        if self.counts.len() > self.words_max {
            self.prune();
        }
        Ok(())
    }

    fn prune(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        let drop = counts.len() - self.words_max * 3 / 4;
        let (_, &mut threshold, _) = counts.select_nth_unstable(drop - 1);
        let dropped = &mut self.dropped;
        self.counts.retain(|_, count| {
            let keep = *count > threshold;
            *dropped += if keep { 0 } else { *count };
            keep
        });
    }
}

fn count(texts: &[String], tokenizer: &tokenizers::Tokenizer) -> Result<AHashMap<CompactString, u64>, DataError> {
    let mut counts = AHashMap::new();
    for text in texts {
        let mut pieces = PreTokenizedString::from(text.as_str());
        if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(failed)?;
        }
        for (word, _, _) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            if !word.is_empty() && word.len() <= WORD_BYTES_MAX {
                match counts.get_mut(word) {
                    Some(count) => *count += 1,
                    None => {
                        counts.insert(CompactString::from(word), 1);
                    }
                }
            }
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rarest_words_go_first() {
        let mut words = Words::new(8);
        for (word, count) in [("a", 9), ("b", 7), ("c", 5), ("d", 3)] {
            words.counts.insert(word.into(), count);
        }
        for i in 0..5 {
            words.counts.insert(format!("rare{i}").into(), 1);
        }
        words.prune();
        let mut left: Vec<&str> = words.counts.keys().map(CompactString::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["a", "b", "c", "d"]);
        assert_eq!(words.dropped(), 5);
    }
}
