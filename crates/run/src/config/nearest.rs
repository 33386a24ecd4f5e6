//! The known word nearest to a mistyped one.

/// The candidate within a third of the word's length in edits, nearest first, or none.
/// A word cut short (`fast` for `fastest`) counts as one edit away.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| {
            let cut_short = word.len() >= 3 && candidate.starts_with(&word);
            (if cut_short { 1 } else { distance(&word, candidate) }, candidate)
        })
        .filter(|(edits, candidate)| {
            let longest = word.chars().count().max(candidate.chars().count());
            *edits <= (longest / 3).max(1) && *edits < longest
        })
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Edits between two words: insert, delete, replace, or swap two neighbours.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = replaced.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(table[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    table[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_nearest_or_nothing() {
        let keys = ["optimizer", "model", "memory", "method", "lr", "eps"];
        let check = |word: &str, expected: Option<&str>| {
            assert_eq!(nearest(word, keys), expected, "{word}");
        };
        check("optimiser", Some("optimizer"));
        check("modle", Some("model"));
        check("Method", Some("method"));
        check("rl", Some("lr"));
        check("esp", Some("eps"));
        check("opti", Some("optimizer"));
        check("dropout", None);
        check("x", None);
    }
}
