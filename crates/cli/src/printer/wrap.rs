//! Text within a terminal's width.

use unicode_width::UnicodeWidthStr;

/// What a wrapped line goes on with, besides what the line itself begins with.
const INDENT: usize = 2;

/// Breaks lines that are too long between words; a word that is too long by itself stays whole, so that a path can be
/// copied. Without a width nothing is broken.
pub fn wrapped(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let lines: Vec<String> = text.split('\n').map(|line| wrapped_line(line, width)).collect();
    lines.join("\n")
}

fn wrapped_line(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let lead = line.len() - line.trim_start_matches(' ').len() + INDENT;
    let mut parts = words(line, width, width.saturating_sub(lead)).into_iter();
    let mut text = parts.next().unwrap_or_default();
    for part in parts {
        text.push('\n');
        text.push_str(&" ".repeat(lead));
        text.push_str(&part);
    }
    text
}

/// What stays with the number before it.
const UNITS: [&str; 9] = ["%", "B", "KiB", "MiB", "GiB", "ms", "s", "W", "×"];

/// Words of a text, a number and its unit as one.
fn unbroken(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for part in text.split(' ') {
        let is_unit = UNITS.contains(&part.trim_end_matches([',', ';', '.', ')']));
        match words.last_mut() {
            Some(last) if is_unit && last.ends_with(|c: char| c.is_ascii_digit()) => {
                last.push(' ');
                last.push_str(part);
            }
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Lines of whole words: the first at most `first` wide, the others `rest`.
pub fn words(text: &str, first: usize, rest: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut parts = unbroken(text).into_iter();
    let mut line = parts.next().unwrap_or_default();
    for word in parts {
        let width = if lines.is_empty() { first } else { rest };
        // The spaces before a line's first word are not a place to break it.
        if !line.trim().is_empty() && line.width() + 1 + word.width() > width {
            lines.push(std::mem::replace(&mut line, word));
        } else {
            line.push(' ');
            line.push_str(&word);
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        let check = |text: &str, width: Option<usize>, expected: &str| assert_eq!(wrapped(text, width), expected);
        let text = "hint: set data.eval to a file";
        check(text, None, text);
        check(text, Some(29), text);
        check(text, Some(28), "hint: set data.eval to a\n  file");
        check(text, Some(12), "hint: set\n  data.eval\n  to a file");
        check("  at the start", Some(10), "  at the\n    start");
        check("see /a/long/path/without/end here", Some(10), "see\n  /a/long/path/without/end\n  here");
        check("one two\nthree four", Some(9), "one two\nthree\n  four");
        check("busy 100 % of the time", Some(9), "busy\n  100 %\n  of the\n  time");
        check("中文 中文 中文", Some(9), "中文 中文\n  中文");
    }
}
