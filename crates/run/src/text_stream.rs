//! Tokens as text while they come: whole characters only, and nothing that a terminal would obey.

/// Text of tokens so far. A token may be a part of a character, or be written otherwise before others, so text is handed
/// out once the next tokens cannot change it.
#[derive(Debug, Default)]
pub struct TextStream {
    tokens: Vec<u32>,
    /// Text of the tokens from `first` to `read` is out; those before `first` no longer matter.
    first: usize,
    read: usize,
}

/// What stands where bytes are no character, or not yet one.
const BROKEN: char = '\u{FFFD}';

impl TextStream {
    /// The text that a token completes, as `decode` has it.
    pub fn push<E>(&mut self, token: u32, decode: impl Fn(&[u32]) -> Result<String, E>) -> Result<String, E> {
        self.tokens.push(token);
        let text = decode(&self.tokens[self.first..])?;
        if text.ends_with(BROKEN) {
            return Ok(String::new());
        }
        self.take(&text, decode)
    }

    /// What is left, complete or not.
    pub fn finish<E>(&mut self, decode: impl Fn(&[u32]) -> Result<String, E>) -> Result<String, E> {
        let text = decode(&self.tokens[self.first..])?;
        self.take(&text, decode)
    }

    fn take<E>(&mut self, text: &str, decode: impl Fn(&[u32]) -> Result<String, E>) -> Result<String, E> {
        let out = decode(&self.tokens[self.first..self.read])?;
        // Where the tokens that are out read otherwise now, what comes behind as many bytes is new.
        let new = text.get(out.len()..).unwrap_or_default().to_owned();
        if !new.is_empty() {
            (self.first, self.read) = (self.read, self.tokens.len());
        }
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A token for each byte.
    #[expect(clippy::unnecessary_wraps, reason = "the signature of a tokenizer's")]
    fn bytes(tokens: &[u32]) -> Result<String, Infallible> {
        let bytes: Vec<u8> = tokens.iter().map(|&token| token as u8).collect();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn pieces(text: &[u8]) -> Vec<String> {
        let mut stream = TextStream::default();
        let mut pieces: Vec<String> = text.iter().map(|&b| stream.push(u32::from(b), bytes).unwrap()).collect();
        pieces.push(stream.finish(bytes).unwrap());
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    #[test]
    fn characters_come_whole() {
        assert_eq!(pieces("aé船🚢b".as_bytes()), ["a", "é", "船", "🚢", "b"]);
        assert_eq!(pieces(b"a\xF0\x9F"), ["a", "\u{FFFD}"], "what is left is told at the end");
        assert_eq!(pieces(b""), Vec::<String>::new());
        // A byte that begins no character is out as soon as something follows.
        assert_eq!(pieces(b"a\xFFb").concat(), "a\u{FFFD}b");
    }

    /// As of tokenizers that put a space before every word but the first.
    #[test]
    fn words_keep_their_spaces() {
        let words = |tokens: &[u32]| -> Result<String, Infallible> {
            let words: Vec<String> = tokens.iter().map(|token| format!("w{token}")).collect();
            Ok(words.join(" "))
        };
        let mut stream = TextStream::default();
        let text: String = [4, 10, 7, 7].iter().map(|&token| stream.push(token, words).unwrap()).collect();
        assert_eq!(text + &stream.finish(words).unwrap(), "w4 w10 w7 w7");
    }
}
