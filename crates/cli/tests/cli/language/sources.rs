//! What the sources say: every string in them that a person may come to read.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_speech::Template;

/// A sentence in the sources, and where it stands.
#[derive(Debug)]
pub struct Said {
    pub place: String,
    pub text: String,
}

#[derive(Debug, Default)]
pub struct Sources {
    /// Sentences, templates with holes among them.
    pub sentences: Vec<Said>,
    /// Every string there is: words of the catalogue are among them.
    pub all: BTreeSet<String>,
}

/// A string of a source, without the line breaks that only the source has.
struct Literal {
    at: usize,
    text: String,
}

/// Before strings that no user reads as a sentence: what is said when a program's own assumption fails, attributes, and keys
/// of a run file.
const NO_SPEECH: [&str; 9] = [
    ".expect(",
    "expect_err(",
    "panic!(",
    "unreachable!(",
    "assert!(",
    "reason = ",
    "include_str!(",
    "text.key(",
    "text.key(&format!(",
];
/// Before words that are shown.
const SHOWN: [&str; 9] = [
    "Column::left(",
    "Column::right(",
    "Column::names(",
    "one_memory(",
    ".progress(",
    "say(",
    "row(",
    "column(",
    "headed(",
];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Sources {
    /// Reads all crates but those for tests and the catalogue itself; `skip` are files of no sentences.
    pub fn read(skip: &[&str]) -> Self {
        let mut sources = Self::default();
        let mut files = Vec::new();
        collect(&root().join("crates"), &mut files);
        files.sort();
        for file in files {
            let name = file.strip_prefix(root()).expect("below it").display().to_string().replace('\\', "/");
            if ["crates/conformance/", "crates/speech/"].iter().any(|other| name.starts_with(other)) {
                continue;
            }
            let text = fs::read_to_string(&file).expect("UTF-8");
            sources.file(&name, &text, skip.contains(&name.as_str()));
        }
        sources
    }

    fn file(&mut self, name: &str, text: &str, skip: bool) {
        if name.ends_with(".js") {
            return self.script(name, text);
        }
        let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for literal in literals(text) {
            self.all.insert(literal.text.clone());
            let before = text[..literal.at].trim_end();
            let line = &text[text[..literal.at].rfind('\n').map_or(0, |at| at + 1)..literal.at];
            if skip || NO_SPEECH.iter().any(|begin| before.ends_with(begin)) || line.contains("assert") {
                continue;
            }
            let is_shown = SHOWN.iter().any(|begin| before.ends_with(begin));
            self.literal(&place(name, text, literal.at), &literal.text, is_shown);
        }
        if name.starts_with("crates/cli/src/args") {
            self.help(name, text);
        }
    }

    /// Each line of a text is a sentence of its own.
    fn literal(&mut self, place: &str, text: &str, is_shown: bool) {
        for (index, line) in text.split('\n').enumerate() {
            let line = if index > 0 { line.trim_start() } else { line };
            // What begins and ends with a space stands between two others.
            let between = line.starts_with(' ') && line.ends_with(' ') && !line.contains('{');
            let line = if between { &format!("{{}}{line}{{}}") } else { line };
            if is_shown && line.chars().any(char::is_alphabetic) || is_sentence(line) {
                self.sentences.push(Said { place: place.to_owned(), text: line.to_owned() });
            }
        }
    }

    /// The help of commands and flags: doc comments of what clap reads.
    fn help(&mut self, name: &str, text: &str) {
        let mut doc: Vec<&str> = Vec::new();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if let Some(words) = line.strip_prefix("///") {
                doc.push(words.trim());
                continue;
            }
            let help = doc.join(" ");
            doc.clear();
            let is_code = ["fn ", "pub fn ", "const ", "static "].iter().any(|begin| line.starts_with(begin));
            if help.is_empty() || is_code || line.starts_with("#[derive(") && !line.contains("Parser") {
                continue;
            }
            let text = help.strip_suffix('.').unwrap_or(&help).to_owned();
            self.sentences.push(Said { place: format!("{name}:{}", index + 1), text });
        }
    }

    /// The words of a page stand in objects, each behind `said({`.
    fn script(&mut self, name: &str, text: &str) {
        for (at, _) in text.match_indices("said({\n") {
            let words = &text[at..at + text[at..].find("});").expect("an end")];
            for literal in literals(words) {
                self.all.insert(literal.text.clone());
                self.sentences.push(Said { place: place(name, text, at + literal.at), text: literal.text });
            }
        }
    }
}

fn place(name: &str, text: &str, at: usize) -> String {
    format!("{name}:{}", text[..at].matches('\n').count() + 1)
}

/// Whether it is more than a name or a key: two words at least, of which one is no hole.
fn is_sentence(text: &str) -> bool {
    let template = Template::parse(text);
    let of_letters = |word: &str| word.chars().filter(|c| c.is_ascii_alphabetic()).count() >= 2;
    // Behind this word, which the catalogue has, stands a command.
    if text.starts_with("Example: plimsoll ") {
        return false;
    }
    text.contains(' ') && template.literals.iter().any(|literal| literal.split([' ', '\u{0}']).any(of_letters))
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("readable").filter_map(Result::ok) {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let is_script = path.extension().is_some_and(|ending| ending == "js");
        if path.is_dir() {
            if !["tests", "examples", "target"].contains(&name.as_str()) {
                collect(&path, found);
            }
        } else if is_script || name.ends_with(".rs") && !["tests.rs", "snapshots.rs"].contains(&name.as_str()) {
            found.push(path);
        }
    }
}

/// The strings of a source, in order. Comments and characters are passed over.
fn literals(text: &str) -> Vec<Literal> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let next = rest.chars().next().expect("not at the end");
        at += if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some((hashes, begin)) = raw(text, at) {
            let end = format!("\"{}", "#".repeat(hashes));
            let length = rest[begin..].find(&end).expect("an end");
            found.push(Literal { at, text: rest[begin..begin + length].to_owned() });
            begin + length + end.len()
        } else if next == '"' {
            let length = string_end(rest);
            found.push(Literal { at, text: unescaped(&rest[1..length]) });
            length + 1
        } else if next == '\'' {
            character(rest)
        } else {
            next.len_utf8()
        };
    }
    found
}

/// Whether a raw string begins there: how many `#` it has, and where its text begins.
fn raw(text: &str, at: usize) -> Option<(usize, usize)> {
    let is_name = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
    let rest = text[at..].strip_prefix('r').filter(|_| !is_name)?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some((hashes, hashes + 2))
}

/// Where the quote is that ends a string.
fn string_end(text: &str) -> usize {
    let mut escaped = true;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at,
            _ => escaped = c == '\\' && !escaped,
        }
    }
    text.len()
}

/// The length of a character, or of the quote of a lifetime.
fn character(text: &str) -> usize {
    let inner = &text[1..];
    if inner.starts_with('\\') {
        return 2 + inner[2..].find('\'').map_or(1, |at| at + 2);
    }
    let first = inner.chars().next().map_or(0, char::len_utf8);
    if inner[first..].starts_with('\'') { first + 2 } else { 1 }
}

fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            // The source goes on in another line, the text does not.
            Some('\n') => while chars.next_if(|c| c.is_whitespace()).is_some() {},
            Some(other @ ('"' | '\\' | '\'')) => out.push(other),
            Some(other) => out.extend(['\\', other]),
            None => {}
        }
    }
    out
}

#[test]
fn strings_are_found() {
    let source = "let a = \"one \\\"two\\\" \\\n    three\\n\"; // \"none\"\nlet b = '\"'; let c = r#\"some \"thing\"\"#; fn f<'a>() {}\n\
                  panic!(\"no {speech}\"); Column::left(\"head\"); row.map(\"some words {z}\")";
    let texts: Vec<String> = literals(source).into_iter().map(|literal| literal.text).collect();
    assert_eq!(texts, ["one \"two\" three\n", "some \"thing\"", "no {speech}", "head", "some words {z}"]);
    let mut sources = Sources::default();
    sources.file("x.rs", source, false);
    let said: Vec<&str> = sources.sentences.iter().map(|said| said.text.as_str()).collect();
    assert_eq!(said, ["one \"two\" three", "some \"thing\"", "head", "some words {z}"]);
    assert!(is_sentence(" of {}") && is_sentence("{} tokens") && !is_sentence("{} / {}") && !is_sentence("data.train"));
}
