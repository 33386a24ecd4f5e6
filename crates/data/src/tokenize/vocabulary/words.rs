//! Counts of words, of which only the frequent ones matter.

use ahash::AHashMap;
use compact_str::CompactString;
use rayon::prelude::*;
use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

use super::failed;
use crate::error::DataError;

/// A word longer than this is no word: data in base 64, a line of dashes. It is left out, unless it is a whole paragraph in
/// a script that puts no spaces between words.
const WORD_BYTES_MAX: usize = 256;
/// Letters of such a script between two signs, at most; where there are more, they are parted anywhere.
const RUN_LETTERS_MAX: usize = 64;

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
            for part in counted(word) {
                match counts.get_mut(part) {
                    Some(count) => *count += 1,
                    None => {
                        counts.insert(CompactString::from(part), 1);
                    }
                }
            }
        }
    }
    Ok(counts)
}

/// What is counted of a word: itself, the clauses of a paragraph without spaces, or nothing.
fn counted(word: &str) -> Vec<&str> {
    if word.len() <= WORD_BYTES_MAX {
        return if word.is_empty() { Vec::new() } else { vec![word] };
    }
    if !word.chars().any(is_unspaced) {
        return Vec::new();
    }
    let mut parts = Vec::new();
    for clause in word.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let mut rest = clause;
        while let Some((end, _)) = rest.char_indices().nth(RUN_LETTERS_MAX) {
            let (part, behind) = rest.split_at(end);
            parts.push(part);
            rest = behind;
        }
        parts.push(rest);
    }
    // What is no such script in between is as long or as short as words are.
    parts.retain(|part| part.len() <= WORD_BYTES_MAX && part.chars().any(is_unspaced));
    parts
}

/// Letters of Chinese and Japanese.
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30FF}' | '\u{3400}'..='\u{9FFF}' | '\u{F900}'..='\u{FAFF}' | '\u{20000}'..='\u{3FFFF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_without_spaces_are_counted_by_their_clauses() {
        let clause = "今天天气很好，";
        assert_eq!(counted(clause), [clause]);
        assert_eq!(counted(&clause.repeat(50)), vec![clause; 50]);
        let run = "船".repeat(150);
        assert_eq!(counted(&run).iter().map(|part| part.chars().count()).collect::<Vec<_>>(), [64, 64, 22]);
        assert_eq!(counted(&"QUJD+/==".repeat(50)), Vec::<&str>::new(), "data in base 64");
        assert_eq!(counted(&format!("{}{clause}", "-".repeat(300))), [clause]);
        assert_eq!(counted(""), Vec::<&str>::new());
    }

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
