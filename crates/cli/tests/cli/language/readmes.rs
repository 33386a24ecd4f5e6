//! README.md and README.zh-CN.md tell the same: the same sections, commands, links and names.

use std::collections::BTreeSet;
use std::fs;

use super::sources::root;

/// What of a document does not depend on its language.
#[derive(Debug, Default)]
struct Outline {
    /// The level of each heading.
    headings: Vec<usize>,
    /// Lines of commands and of run files, without their remarks.
    code: Vec<String>,
    /// Blocks of what a program says.
    texts: usize,
    rows: usize,
    links: BTreeSet<String>,
    /// What stands between backticks.
    names: BTreeSet<String>,
}

/// The other language's document; each names the other.
const DOCUMENTS: [&str; 2] = ["README.md", "README.zh-CN.md"];

fn outline(text: &str) -> Outline {
    let mut outline = Outline::default();
    let mut block: Option<&str> = None;
    let mut prose = String::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            outline.texts += usize::from(block.is_none() && kind == "text");
            block = if block.is_some() { None } else { Some(kind) };
        } else if let Some(kind) = block {
            if kind != "text" {
                let bare = line.split(" #").next().unwrap_or_default().trim_end();
                // Patterns are named in words.
                outline.code.push(bare.split(", or {").next().unwrap_or_default().to_owned());
            }
        } else {
            let level = line.len() - line.trim_start_matches('#').len();
            if level > 0 {
                outline.headings.push(level);
            }
            outline.rows += usize::from(line.starts_with('|'));
            prose += line;
            prose.push(' ');
        }
    }
    outline.names = prose.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let targets = prose.match_indices("](").filter_map(|(at, _)| prose[at + 2..].split(')').next());
    outline.links = targets.filter(|link| !DOCUMENTS.contains(link)).map(str::to_owned).collect();
    outline
}

#[test]
fn both_tell_the_same() {
    let [english, chinese] = DOCUMENTS.map(|name| outline(&fs::read_to_string(root().join(name)).expect("readable")));
    assert!(english.headings.len() > 5 && english.code.len() > 20 && english.names.len() > 60, "{english:?}");
    assert_eq!(english.headings, chinese.headings, "levels of headings");
    assert_eq!(english.code, chinese.code, "commands and run files");
    assert_eq!((english.texts, english.rows), (chinese.texts, chinese.rows), "blocks of text and rows of tables");
    assert_eq!(english.links, chinese.links, "links");
    let missing: Vec<&String> = english.names.difference(&chinese.names).collect();
    let surplus: Vec<&String> = chinese.names.difference(&english.names).collect();
    assert!(missing.is_empty() && surplus.is_empty(), "README.zh-CN.md lacks {missing:?} and has besides {surplus:?}");
}
