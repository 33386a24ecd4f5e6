//! Text from data and models, for people to look at.

/// The text on one line, and with nothing in it that a terminal would obey: line breaks and tabs are shown as `↵` and
/// `⇥`, other control characters as `\u{FFFD}`.
pub fn visible(text: &str) -> String {
    text.chars().map(shown).collect()
}

fn shown(c: char) -> char {
    match c {
        '\n' => '↵',
        '\t' => '⇥',
        c if is_obeyed(c) => '\u{FFFD}',
        c => c,
    }
}

/// The same with lines and tabs as they are.
pub fn visible_lines(text: &str) -> String {
    let shown = |c: char| if matches!(c, '\n' | '\t') { c } else { shown(c) };
    text.chars().map(shown).collect()
}

/// Control characters, and those that turn the direction of what follows.
fn is_obeyed(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_obey() {
        assert_eq!(visible("a\n\tb"), "a↵⇥b");
        assert_eq!(visible("\x1b[2J\r\u{9b}\u{202e}x"), "\u{FFFD}[2J\u{FFFD}\u{FFFD}\u{FFFD}x");
        assert_eq!(visible_lines("a\n\tb\x1b[2J"), "a\n\tb\u{FFFD}[2J");
        assert_eq!(visible("größer 中文 🦀"), "größer 中文 🦀");
    }
}
