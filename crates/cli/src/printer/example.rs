//! An example for people to look at: text with loss stands between ⟦ and ⟧, or in colour.

use plimsoll_run::{ExampleText, Piece, visible};
use plimsoll_speech::Language;

/// Characters of a piece that are shown, the last third of them from its end.
const PIECE_CHARS_MAX: usize = 240;
/// Pieces of a text that are shown.
const PIECES_MAX: usize = 8;

pub fn render(example: &ExampleText, colour: bool, language: Language) -> String {
    let text = |(lead, pieces): &(String, Vec<Piece>)| {
        let shown: String = pieces.iter().take(PIECES_MAX).map(|piece| mark(piece, colour)).collect();
        let more = if pieces.len() > PIECES_MAX { " …" } else { "" };
        format!("{}\n  {shown}{more}", language.say(lead))
    };
    example.0.iter().map(text).collect::<Vec<_>>().join("\n")
}

fn mark(piece: &Piece, colour: bool) -> String {
    let text = visible(&shortened(&piece.text));
    match (piece.has_loss, colour) {
        (false, _) => text,
        (true, false) => format!("⟦{text}⟧"),
        (true, true) => format!("\x1b[1;32m{text}\x1b[0m"),
    }
}

fn shortened(text: &str) -> String {
    let count = text.chars().count();
    if count <= PIECE_CHARS_MAX {
        return text.to_owned();
    }
    let tail = PIECE_CHARS_MAX / 3;
    let begin: String = text.chars().take(PIECE_CHARS_MAX - tail).collect();
    let end: String = text.chars().skip(count - tail).collect();
    format!("{begin} … {end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(text: &str, has_loss: bool) -> Piece {
        Piece { text: text.to_owned(), has_loss }
    }

    #[test]
    fn text_with_loss_is_marked() {
        let example = ExampleText(vec![("first:".to_owned(), vec![piece("1\n+\x1b[2J", false), piece("2", true)])]);
        assert_eq!(render(&example, false, Language::English), "first:\n  1↵+\u{FFFD}[2J⟦2⟧");
        assert_eq!(render(&example, true, Language::English), "first:\n  1↵+\u{FFFD}[2J\x1b[1;32m2\x1b[0m");
    }

    #[test]
    fn long_texts_keep_both_ends() {
        let text = format!("{}b", "a".repeat(10_000));
        let shown = shortened(&text);
        assert_eq!(shown.chars().count(), PIECE_CHARS_MAX + " … ".chars().count());
        assert!(shown.starts_with("aaa") && shown.ends_with("ab"));
        let many = vec![piece("x", false); 100];
        let rendered = render(&ExampleText(vec![("lead".to_owned(), many)]), false, Language::English);
        assert_eq!(rendered, format!("lead\n  {} …", "x".repeat(PIECES_MAX)));
    }
}
