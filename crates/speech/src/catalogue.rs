//! The catalogue: English templates with their translations.
//!
//! A line that begins in the first column is a template, as it stands in the source; the indented line below it is its
//! translation. `#` begins a remark. A template that begins or ends with a space stands in quotes.
//!
//! What stands in a hole is translated if it is a sentence; where `{name!}` stands, words are translated, too. A template of
//! few words could be found where it is not meant: `~` before it keeps it to places of words, `^` to whole texts.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::template::{Hole, Template};

#[derive(Clone, Debug)]
pub struct Entry {
    pub english: Template,
    pub translation: Template,
    /// The template as the file has it.
    pub source: String,
    /// For whole texts only.
    pub is_whole: bool,
    /// Only where words are translated.
    pub is_word: bool,
}

#[derive(Debug)]
pub struct Catalogue {
    pub entries: Vec<Entry>,
    /// By the text of those without holes.
    fixed: HashMap<String, usize>,
    /// Of those with holes, by the first byte of their first literal; those that begin with a hole are under `None`.
    open: HashMap<Option<u8>, Vec<usize>>,
}

const FILES: [(&str, &str); 9] = [
    ("zh/words.txt", include_str!("../zh/words.txt")),
    ("zh/cli.txt", include_str!("../zh/cli.txt")),
    ("zh/help.txt", include_str!("../zh/help.txt")),
    ("zh/keys.txt", include_str!("../zh/keys.txt")),
    ("zh/run.txt", include_str!("../zh/run.txt")),
    ("zh/data.txt", include_str!("../zh/data.txt")),
    ("zh/train.txt", include_str!("../zh/train.txt")),
    ("zh/device.txt", include_str!("../zh/device.txt")),
    ("zh/observe.txt", include_str!("../zh/observe.txt")),
];

/// The catalogue of Chinese.
pub fn chinese() -> &'static Catalogue {
    static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
    // What could be wrong with the files is found by this crate's tests.
    CATALOGUE.get_or_init(|| Catalogue::read(&FILES).0)
}

impl Catalogue {
    /// What the files hold, and what is wrong with them.
    pub fn read(files: &[(&str, &str)]) -> (Self, Vec<String>) {
        let mut catalogue = Self { entries: Vec::new(), fixed: HashMap::new(), open: HashMap::new() };
        let mut faults = Vec::new();
        let mut shapes: HashMap<String, String> = HashMap::new();
        for (name, text) in files {
            let mut pending: Option<&str> = None;
            for (index, line) in text.lines().enumerate() {
                let place = format!("{name}:{}", index + 1);
                if line.starts_with('#') || line.trim().is_empty() {
                    continue;
                }
                match (line.starts_with("  "), pending.take()) {
                    (false, None) => pending = Some(line),
                    (false, Some(before)) => {
                        faults.push(format!("{place}: no translation of `{before}` before this line"));
                        pending = Some(line);
                    }
                    (true, None) => faults.push(format!("{place}: a translation of nothing")),
                    (true, Some(english)) => match entry(english, line) {
                        Ok(entry) => {
                            let shape = entry.english.shape();
                            if let Some(before) = shapes.insert(shape, place.clone()) {
                                faults.push(format!("{place}: the sentence stands already at {before}"));
                            }
                            catalogue.add(entry);
                        }
                        Err(fault) => faults.push(format!("{place}: {fault}")),
                    },
                }
            }
            faults.extend(pending.map(|english| format!("{name}: `{english}` has no translation")));
        }
        (catalogue, faults)
    }

    fn add(&mut self, entry: Entry) {
        let index = self.entries.len();
        let begin = &entry.english.literals[0];
        if entry.english.holes.is_empty() {
            self.fixed.insert(begin.clone(), index);
        } else {
            self.open.entry(begin.bytes().next()).or_default().push(index);
        }
        self.entries.push(entry);
    }

    /// The translation of a text without holes.
    pub fn exact(&self, text: &str) -> Option<&str> {
        self.fixed.get(text).map(|&index| self.entries[index].translation.literals[0].as_str())
    }

    /// The entry for exactly this text.
    pub(crate) fn fixed(&self, text: &str) -> Option<&Entry> {
        self.fixed.get(text).map(|&index| &self.entries[index])
    }

    /// Entries with holes that a text may have been made by, in the order of the files.
    pub(crate) fn open(&self, text: &str) -> impl Iterator<Item = &Entry> {
        let first = text.bytes().next();
        let kinds = [first, None];
        let kinds = if first.is_none() { &kinds[1..] } else { &kinds[..] };
        let indices = kinds.iter().filter_map(|kind| self.open.get(kind)).flatten().copied().collect::<Vec<_>>();
        indices.into_iter().map(|index| &self.entries[index])
    }
}

fn entry(english: &str, translation: &str) -> Result<Entry, String> {
    let (source, is_whole) = english.strip_prefix('^').map_or((english, false), |rest| (rest, true));
    let (source, is_word) = source.strip_prefix('~').map_or((source, false), |rest| (rest, true));
    let source = unquoted(source);
    let english = Template::parse(source);
    let mut translation = Template::parse(unquoted(translation.trim()));
    let known = |hole: &Hole| english.holes.iter().any(|other| other.names.contains(&hole.names[0]));
    let times = |hole: &Hole| translation.holes.iter().filter(|other| hole.names.contains(&other.names[0])).count();
    if let Some(hole) = translation.holes.iter().find(|hole| hole.names.len() > 1) {
        return Err(format!("two holes touch in the translation: {}", hole.names.join(", ")));
    }
    if let Some(hole) = translation.holes.iter().find(|hole| !known(hole)) {
        return Err(format!("`{source}` has no hole `{}`", hole.names[0]));
    }
    if let Some(hole) = english.holes.iter().find(|hole| times(hole) == 0) {
        return Err(format!("the translation lacks the hole `{}`", hole.names[0]));
    }
    for hole in &mut translation.holes {
        let original = english.holes.iter().find(|other| other.names.contains(&hole.names[0])).expect("known");
        hole.names.clone_from(&original.names);
        hole.is_number = original.is_number;
    }
    let is_word = is_word || english.is_word();
    Ok(Entry { english, translation, source: source.to_owned(), is_whole, is_word })
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Language;

    /// Values that are in no sentence.
    fn value(hole: &Hole) -> String {
        if hole.is_number { "7.5".to_owned() } else { format!("⟨{}⟩", hole.names[0]) }
    }

    #[test]
    fn the_files_are_sound() {
        let (catalogue, faults) = Catalogue::read(&FILES);
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
        assert!(catalogue.entries.len() > 1000);
    }

    /// No other entry takes a sentence away from the one that it was made by.
    #[test]
    fn every_sentence_is_found_again() {
        let mut faults = Vec::new();
        for entry in &chinese().entries {
            let (english, expected) = (entry.english.filled(value), entry.translation.filled(value));
            let tail = entry.english.is_tail();
            let (english, expected) =
                if tail { (format!("⟨⟩{english}"), format!("⟨⟩{expected}")) } else { (english, expected) };
            let said = if entry.is_word { Language::Chinese.word(&english) } else { Language::Chinese.say(&english) };
            if said != expected {
                faults.push(format!("{english}\n  should be {expected}\n  and is    {said}"));
            }
        }
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    }

    #[test]
    fn faults_are_named() {
        let faults = |text: &str| Catalogue::read(&[("x", text)]).1;
        assert!(faults("# remark\n\na {b}\n  甲 {b}\n").is_empty());
        assert_eq!(faults("a {b}\n  甲\n"), ["x:2: the translation lacks the hole `b`"]);
        assert_eq!(faults("a\n  甲 {b}\n"), ["x:2: `a` has no hole `b`"]);
        assert_eq!(faults("a {b}\n  甲 {b}\na {c}\n  乙 {c}\n"), ["x:4: the sentence stands already at x:2"]);
        assert_eq!(faults("a\nb\n  乙\n"), ["x:2: no translation of `a` before this line"]);
        assert_eq!(faults("  甲\n"), ["x:1: a translation of nothing"]);
        assert_eq!(faults("a\n"), ["x: `a` has no translation"]);
    }
}
