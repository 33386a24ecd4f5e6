//! The style that no compiler checks: short files and functions, no leftovers, no file without an idea.

use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 100;
/// Of comments; the formatter sees to the code.
const COMMENT_CHARS_MAX: usize = 125;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("readable").filter_map(Result::ok) {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && name != ".git" {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "cu" || e == "cuh") {
            found.push(path);
        }
    }
}

/// Functions begin at `fn` and end at a brace of the same indentation; good enough for formatted code.
fn long_functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut long = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let begins = ["fn ", "pub fn ", "pub(crate) fn ", "pub(super) fn ", "unsafe fn ", "pub unsafe fn "];
        let declares = code.trim_end().ends_with(';');
        if declares || !begins.iter().any(|b| code.starts_with(b)) {
            continue;
        }
        let end =
            (start..lines.len()).find(|&i| indent(lines[i]) == indent(line) && lines[i].trim_end().ends_with('}'));
        if let Some(end) = end
            && end - start + 1 > FUNCTION_LINES_MAX
        {
            long.push((start + 1, end - start + 1));
        }
    }
    long
}

#[test]
fn sources_are_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    assert!(files.len() > 50, "the sources are where this test looks for them");
    // In two parts each, so that this file is not its own find.
    let leftovers = [("to", "do!"), ("unimple", "mented!"), ("db", "g!"), ("FIX", "ME"), ("XX", "X"), ("#[ig", "nore")]
        .map(|(a, b)| format!("{a}{b}"));
    let mut faults = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("UTF-8");
        let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            faults.push(format!("{name}: {lines} lines; is it one idea?"));
        }
        for (line, length) in long_functions(&text) {
            faults.push(format!("{name}:{line}: a function of {length} lines"));
        }
        for (number, line) in text.lines().enumerate() {
            let length = line.chars().count();
            if line.trim_start().starts_with("//") && length > COMMENT_CHARS_MAX {
                faults.push(format!("{name}:{}: a comment of {length} characters", number + 1));
            }
            if leftovers.iter().any(|l| line.contains(l)) {
                faults.push(format!("{name}:{}: leftover: {}", number + 1, line.trim()));
            }
        }
        let begins = text.trim_start();
        if name.ends_with("lib.rs") && !begins.starts_with("//!") {
            faults.push(format!("{name}: says nothing about what the crate is"));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
