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

/// Lines of whole words: the first at most `first` wide, the others `rest`. Chinese text is broken between any two
/// characters, but for marks that belong to the one before or behind them.
pub fn words(text: &str, first: usize, rest: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line: Option<String> = None;
    for part in unbroken(text) {
        for (index, piece) in pieces(&part).into_iter().enumerate() {
            let Some(begun) = &mut line else {
                line = Some(piece.to_owned());
                continue;
            };
            let gap = if index == 0 { " " } else { "" };
            let width = if lines.is_empty() { first } else { rest };
            // The spaces before a line's first word are not a place to break it.
            if !begun.trim().is_empty() && begun.width() + gap.len() + piece.width() > width {
                lines.push(std::mem::replace(begun, piece.to_owned()));
            } else {
                begun.push_str(gap);
                begun.push_str(piece);
            }
        }
    }
    lines.push(line.unwrap_or_default());
    lines
}

/// What of a word must stay together. Names in a path are no text, whatever they are written in.
fn pieces(word: &str) -> Vec<&str> {
    let mut starts = Vec::new();
    let mut last: Option<char> = None;
    let mut in_path = false;
    for (at, c) in word.char_indices() {
        let breaks = last.is_some_and(|last| {
            let between = is_ideograph(last) || is_ideograph(c) || is_closing(last) || is_opening(c);
            between && !is_closing(c) && !is_opening(last) && !in_path
        });
        if breaks {
            starts.push(at);
        }
        in_path = c == '/' || in_path && !is_closing(c);
        last = Some(c);
    }
    let mut pieces = Vec::new();
    let mut rest = word;
    for start in starts.into_iter().rev() {
        let (before, piece) = rest.split_at(start);
        pieces.push(piece);
        rest = before;
    }
    pieces.push(rest);
    pieces.reverse();
    pieces
}

fn is_ideograph(c: char) -> bool {
    ('\u{2e80}'..='\u{9fff}').contains(&c) && !is_closing(c) && !is_opening(c)
}

/// Never at the beginning of a line.
fn is_closing(c: char) -> bool {
    "，。：；、？！）”》".contains(c)
}

/// Never at the end of a line.
fn is_opening(c: char) -> bool {
    "（“《".contains(c)
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

    #[test]
    fn chinese_breaks_between_characters() {
        let check = |text: &str, width: usize, expected: &str| assert_eq!(wrapped(text, Some(width)), expected);
        check("最小的计划需要更多内存", 10, "最小的计划\n  需要更多\n  内存");
        check("提示：可行的，最小（预算）", 12, "提示：可行\n  的，最小\n  （预算）");
        check("请用 --gpu 设置预算", 12, "请用 --gpu\n  设置预算");
        check("无法读取 /数据/模型：没有", 12, "无法读取\n  /数据/模型：\n  没有");
        for width in 6..40 {
            let text = wrapped("显存 70.00 GiB 超出预算，请减小 data.max_length。", Some(width.max(19)));
            assert!(text.lines().all(|line| line.width() <= width.max(19)), "{text}");
        }
    }
}
