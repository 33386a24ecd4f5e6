//! Cuts text into words as the two patterns do that nearly every byte-level tokenizer uses, without a regex engine.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// GPT-2's pattern, built into the `ByteLevel` step.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// GPT-4's, also Llama 3's, and with single digits Qwen's.
const GPT4: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    Gpt2,
    Gpt4 { digits_max: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Other,
    Letter,
    Number,
    Space,
}

/// By code point, from the tables of the regex engine that the patterns are written for: a megabyte, once.
static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let mut kinds = vec![Kind::Other; 0x11_0000];
    for (class, kind) in [(r"\p{L}", Kind::Letter), (r"\p{N}", Kind::Number), (r"\s", Kind::Space)] {
        let parsed = regex_syntax::parse(class);
        if let Ok(HirKind::Class(Class::Unicode(ranges))) = parsed.map(|hir| hir.kind().clone()) {
            for range in ranges.ranges() {
                kinds[range.start() as usize..=range.end() as usize].fill(kind);
            }
        }
    }
    kinds
});

impl Pattern {
    pub(super) fn of_regex(regex: &str) -> Option<Self> {
        match regex {
            GPT2 => Some(Self::Gpt2),
            GPT4 => Some(Self::Gpt4 { digits_max: 3 }),
            QWEN => Some(Self::Gpt4 { digits_max: 1 }),
            _ => None,
        }
    }

    /// Calls `word` with each word; together they are the text.
    pub(super) fn split<'t>(self, text: &'t str, mut word: impl FnMut(&'t str)) {
        let kinds = KINDS.as_slice();
        let mut rest = text;
        while !rest.is_empty() {
            let cursor = Cursor { text: rest, kinds };
            let end = match self {
                Self::Gpt2 => cursor.gpt2(),
                Self::Gpt4 { digits_max } => cursor.gpt4(digits_max),
            };
            let (head, tail) = rest.split_at(end);
            word(head);
            rest = tail;
        }
    }
}

struct Cursor<'t> {
    text: &'t str,
    kinds: &'t [Kind],
}

impl Cursor<'_> {
    fn at(&self, offset: usize) -> Option<(char, Kind)> {
        let c = self.text[offset..].chars().next()?;
        Some((c, self.kinds[c as usize]))
    }

    /// Behind up to `most` characters of `kind`.
    fn run(&self, from: usize, kind: Kind, most: usize) -> usize {
        let end = self.text[from..].char_indices().take(most).find(|(_, c)| self.kinds[*c as usize] != kind);
        match end {
            Some((length, _)) => from + length,
            None => from + self.text[from..].chars().take(most).map(char::len_utf8).sum::<usize>(),
        }
    }

    /// `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll`, `'d` at the beginning.
    fn contraction(&self, ignore_case: bool) -> Option<usize> {
        let mut letters = self.text.strip_prefix('\'')?.chars().map(|c| match c {
            // Case folding puts the long s beside the short one.
            'ſ' if ignore_case => 's',
            _ if ignore_case => c.to_ascii_lowercase(),
            _ => c,
        });
        match (letters.next()?, letters.next()) {
            ('s' | 't' | 'm' | 'd', _) => Some(1 + self.text[1..].chars().next()?.len_utf8()),
            ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(3),
            _ => None,
        }
    }

    fn gpt2(&self) -> usize {
        if let Some(end) = self.contraction(false) {
            return end;
        }
        let Some((first, kind)) = self.at(0) else { return 0 };
        if kind != Kind::Space {
            return self.run(0, kind, usize::MAX);
        }
        match self.at(first.len_utf8()) {
            Some((_, next)) if first == ' ' && next != Kind::Space => self.run(1, next, usize::MAX),
            _ => self.spaces(),
        }
    }

    fn gpt4(&self, digits_max: usize) -> usize {
        if let Some(end) = self.contraction(true) {
            return end;
        }
        let Some((first, kind)) = self.at(0) else { return 0 };
        let second = first.len_utf8();
        match kind {
            Kind::Letter => return self.run(0, Kind::Letter, usize::MAX),
            Kind::Number => return self.run(0, Kind::Number, digits_max),
            _ => {}
        }
        if !matches!(first, '\r' | '\n') && self.at(second).is_some_and(|(_, next)| next == Kind::Letter) {
            return self.run(second, Kind::Letter, usize::MAX);
        }
        let spaced = first == ' ' && self.at(1).is_some_and(|(_, next)| next == Kind::Other);
        if kind == Kind::Other || spaced {
            let end = self.run(usize::from(spaced), Kind::Other, usize::MAX);
            let breaks = self.text[end..].bytes().take_while(|b| matches!(b, b'\r' | b'\n')).count();
            return end + breaks;
        }
        let blank = &self.text[..self.run(0, Kind::Space, usize::MAX)];
        match blank.rfind(['\r', '\n']) {
            Some(last) => last + 1,
            None => self.spaces(),
        }
    }

    /// White space up to the last one, which belongs to the word behind it; all of it at the end of the text.
    fn spaces(&self) -> usize {
        let end = self.run(0, Kind::Space, usize::MAX);
        if end == self.text.len() {
            return end;
        }
        let last = self.text[..end].chars().next_back().map_or(0, char::len_utf8);
        if end > last { end - last } else { end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(pattern: &str, text: &str) {
        let regex = tokenizers::utils::SysRegex::new(pattern).expect("compiles");
        let expected: Vec<&str> = regex.find_iter(text).map(|(start, end)| &text[start..end]).collect();
        let mut got = Vec::new();
        Pattern::of_regex(pattern).expect("known").split(text, |word| got.push(word));
        assert_eq!(got, expected, "{text:?}");
    }

    #[test]
    fn words_are_those_of_the_patterns() {
        for pattern in [GPT2, GPT4, QWEN] {
            for text in [
                "",
                "it's 'S 'ſ'LL '",
                "  a\n\n  b\r\n\t c  ",
                "12345 ½x٣",
                "¿qué? ...\n\n!",
                "\u{a0}\u{3000}x",
                "a\u{300}b",
            ] {
                check(pattern, text);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_text_is_cut_the_same_way(text in "([a-cA-Z]{0,3}|[ \t\n\r]{0,3}|'(s|LL|re|ſ|x)|[0-9]{0,5}|[.!…¿]{0,2}|[ü船\u{a0}\u{301}½٣\u{2028}]|\\PC){0,12}") {
            for pattern in [GPT2, GPT4, QWEN] {
                check(pattern, &text);
            }
        }
    }
}
