//! Text from data as a terminal may show it: what would move its cursor, colour or reorder it is written out.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with control characters, and those that change the direction of what is around them, written as escapes.
/// Line breaks and tabs are escaped too: what comes from data stays on its line.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_invisible) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if is_invisible(c) => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

fn is_invisible(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61C}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_are_written_out_and_the_rest_stays() {
        assert_eq!(visible("plain ünï 漢 👍"), "plain ünï 漢 👍");
        assert_eq!(visible("\u{1b}[2J\u{9b}1m\u{7f}\0"), "\\u{1b}[2J\\u{9b}1m\\u{7f}\\u{0}");
        assert_eq!(visible("a\r\n\tb\u{202e}c"), "a\\r\\n\\tb\\u{202e}c");
    }

    proptest! {
        #[test]
        fn nothing_is_left_for_a_terminal_to_obey(text: String) {
            prop_assert!(!visible(&text).chars().any(char::is_control));
        }
    }
}
