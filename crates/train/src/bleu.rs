//! BLEU-4 of texts beside what was expected: how many of their words, and of their runs of two, three and four words, are
//! among those of the reference, less what is too short. Words are counted over all texts before anything is divided.

use std::collections::HashMap;

/// Words of the longest runs.
const ORDERS: usize = 4;

/// What was counted so far.
#[derive(Debug, Clone, Default)]
pub struct Bleu {
    /// Runs of each length that the references have too, and all.
    matches: [u64; ORDERS],
    runs: [u64; ORDERS],
    words: u64,
    reference_words: u64,
}

impl Bleu {
    pub fn add(&mut self, text: &str, reference: &str) {
        let by_character = [text, reference].iter().any(|text| text.chars().any(is_cjk));
        let [text, reference] = [text, reference].map(|text| words(text, by_character));
        self.words += text.len() as u64;
        self.reference_words += reference.len() as u64;
        for order in 1..=ORDERS {
            let (mut expected, mut matches) = (HashMap::new(), 0);
            for run in reference.windows(order) {
                *expected.entry(run).or_insert(0u32) += 1;
            }
            for run in text.windows(order) {
                // Each occurrence in the reference counts once.
                if let Some(left) = expected.get_mut(run).filter(|left| **left > 0) {
                    *left -= 1;
                    matches += 1;
                }
            }
            self.matches[order - 1] += matches;
            self.runs[order - 1] += (text.len() + 1).saturating_sub(order) as u64;
        }
    }

    /// From 0 to 100: the geometric mean of the shares of runs that match, times the penalty for brevity. Where no run of
    /// some length matches, half of one does, and half as much for each further such length.
    pub fn score(&self) -> f64 {
        if self.matches.iter().all(|&matches| matches == 0) {
            return 0.0;
        }
        let (mut logarithms, mut absent) = (0.0, 1.0);
        for (&matches, &runs) in self.matches.iter().zip(&self.runs) {
            // No text is that long.
            if runs == 0 {
                return 0.0;
            }
            let matches = if matches == 0 {
                absent *= 2.0;
                1.0 / absent
            } else {
                matches as f64
            };
            logarithms += (100.0 * matches / runs as f64).ln();
        }
        let brevity = match self.words < self.reference_words {
            true => (1.0 - self.reference_words as f64 / self.words as f64).exp(),
            false => 1.0,
        };
        brevity * (logarithms / ORDERS as f64).exp()
    }
}

/// Letters and marks of scripts that put no space between words.
fn is_cjk(c: char) -> bool {
    matches!(c,
        '\u{2E80}'..='\u{2FDF}' | '\u{3000}'..='\u{30FF}' | '\u{3100}'..='\u{312F}' | '\u{31A0}'..='\u{31BF}'
        | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{F900}'..='\u{FAD9}' | '\u{20000}'..='\u{3134F}')
}

/// What is a word of its own in texts of those scripts: their letters, and all kinds of signs.
fn stands_alone(c: char) -> bool {
    is_cjk(c)
        || matches!(c,
            '\u{2001}'..='\u{2A6D}' | '\u{2FF0}'..='\u{2FFF}' | '\u{31C0}'..='\u{31EF}' | '\u{3200}'..='\u{33FF}'
            | '\u{FE10}'..='\u{FE1F}' | '\u{FE30}'..='\u{FE4F}' | '\u{FF00}'..='\u{FFEF}')
}

/// The words of a text as machine translation is judged by (mteval-v13a): what spaces part, with most signs apart. With
/// `by_character`, each letter of a script without spaces is one.
fn words(text: &str, by_character: bool) -> Vec<String> {
    let text = text.trim_end();
    let mut spaced = Vec::with_capacity(text.len() + 2);
    if by_character {
        for c in text.trim_start().chars() {
            if stands_alone(c) { spaced.extend([' ', c, ' ']) } else { spaced.push(c) }
        }
    } else {
        let mut text = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
        for (entity, sign) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
            text = text.replace(entity, sign);
        }
        spaced.push(' ');
        spaced.extend(text.chars());
        spaced.push(' ');
    }
    let is_sign = |c: char| matches!(c, ' '..='&' | '('..='+' | '/' | ':'..='@' | '['..='`' | '{'..='~');
    let spaced: Vec<char> =
        spaced.into_iter().flat_map(|c| if is_sign(c) { vec![' ', c, ' '] } else { vec![c] }).collect();
    let is_digit = |c: char| c.is_ascii_digit();
    let is_stop = |c: char| matches!(c, '.' | ',');
    let spaced = part_pairs(&spaced, false, |a, b| !is_digit(a) && is_stop(b));
    let spaced = part_pairs(&spaced, true, |a, b| is_stop(a) && !is_digit(b));
    let spaced = part_pairs(&spaced, false, |a, b| is_digit(a) && b == '-');
    let text: String = spaced.into_iter().collect();
    let is_space = |c: char| c.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&c);
    text.split(is_space).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// Sets the second of two characters apart wherever both fit, or the first. What was taken for one pair is in no other.
fn part_pairs(text: &[char], first: bool, fits: impl Fn(char, char) -> bool) -> Vec<char> {
    let mut parted = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        match text[at..] {
            [a, b, ..] if fits(a, b) => {
                parted.extend(if first { [' ', a, ' ', b] } else { [a, ' ', b, ' '] });
                at += 2;
            }
            [a, ..] => {
                parted.push(a);
                at += 1;
            }
            [] => break,
        }
    }
    parted
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value as Json;

    use super::*;

    /// Corpora with the scores that sacrebleu gives them.
    #[test]
    fn scores_are_those_of_sacrebleu() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/bleu.json");
        let file: Json = serde_json::from_str(&std::fs::read_to_string(path).expect("readable")).expect("JSON");
        let cases = file["cases"].as_array().expect("cases");
        assert!(cases.len() >= 20);
        for case in cases {
            let texts = |name: &str| -> Vec<String> { serde_json::from_value(case[name].clone()).expect("texts") };
            let mut bleu = Bleu::default();
            for (text, reference) in texts("texts").iter().zip(texts("references")) {
                bleu.add(text, &reference);
            }
            let expected = case["score"].as_f64().expect("a score");
            assert!((bleu.score() - expected).abs() < 1e-9, "{}: {} for {expected}", case["name"], bleu.score());
        }
    }

    #[test]
    fn nothing_scores_nothing() {
        assert_eq!(Bleu::default().score(), 0.0);
        let mut bleu = Bleu::default();
        bleu.add("", "a b c d");
        bleu.add("", "");
        assert_eq!(bleu.score(), 0.0);
    }
}
