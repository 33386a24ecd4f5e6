//! Pages of the documentation, read as mdBook and GitHub read them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A fenced block: what stands behind the fence, and its lines.
pub struct Block<'a> {
    pub kind: &'a str,
    pub lines: Vec<&'a str>,
}

pub fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(kind), None) => open = Some(Block { kind, lines: Vec::new() }),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.lines.push(line),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "the last block is not closed");
    blocks
}

/// The text outside fenced blocks.
pub fn prose(page: &str) -> String {
    let mut is_code = false;
    let mut kept = String::new();
    for line in page.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            kept += line;
            kept.push('\n');
        }
    }
    kept
}

pub fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").canonicalize().expect("there are docs")
}

/// A page with what it includes.
pub fn read(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let folder = path.parent().expect("a file has a folder");
    let included = |line: &str| match line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}")) {
        Some(what) => include(folder, what, path),
        None => format!("{line}\n"),
    };
    text.lines().map(included).collect()
}

/// `FILE`, or `FILE:ANCHOR`: what stands between the comments that name the anchor.
fn include(folder: &Path, what: &str, page: &Path) -> String {
    let (file, anchor) = what.split_once(':').map_or((what, None), |(file, anchor)| (file, Some(anchor)));
    let path = folder.join(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {what}: {e}", page.display()));
    let Some(anchor) = anchor else { return text };
    let mark = |word: &str| format!("<!-- {word}: {anchor} -->");
    let between = text.split_once(&mark("ANCHOR")).and_then(|(_, rest)| rest.split_once(&mark("ANCHOR_END")));
    between.unwrap_or_else(|| panic!("{}: {file} has no anchor {anchor}", page.display())).0.to_owned()
}

/// Targets of links and images.
pub fn targets(page: &str) -> Vec<String> {
    let prose = without_code(&prose(page));
    let behind = prose.split("](").skip(1);
    behind.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.trim().to_owned()).collect()
}

/// Code between backticks is no link, whatever it looks like.
fn without_code(prose: &str) -> String {
    prose.split('\n').map(|line| line.split('`').step_by(2).collect::<Vec<_>>().join("")).collect::<Vec<_>>().join("\n")
}

/// The anchors of a page's headings.
pub fn anchors(page: &str) -> BTreeSet<String> {
    let prose = prose(page);
    let headings = prose
        .lines()
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#')));
    headings.map(anchor).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_headings_are_found() {
        let page = "# A `b.c` of d's\n[x](y.md) `[no](link)` ![i](images/z.png)\n```sh\n# no heading [n](m)\n```\n";
        assert_eq!(targets(page), ["y.md", "images/z.png"]);
        assert_eq!(anchors(page).into_iter().collect::<Vec<_>>(), ["a-bc-of-ds"]);
    }
}
