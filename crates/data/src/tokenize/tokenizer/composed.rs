//! The one rewriting of texts that most texts do not need: composing characters (NFC), as Qwen's tokenizers do first.

use serde_json::Value;
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

/// Whether nothing rewrites texts before they are split, or only composing does.
pub(super) fn composes_at_most(file: &Value) -> bool {
    file["normalizer"].is_null() || composes(file)
}

/// Whether texts are composed first, and nothing else.
pub(super) fn composes(file: &Value) -> bool {
    file["normalizer"]["type"] == "NFC"
}

/// Whether composing certainly leaves a text as it is.
pub(super) fn is_composed(text: &str) -> bool {
    text.is_ascii() || matches!(is_nfc_quick(text.chars()), IsNormalized::Yes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_that_stay_are_composed() {
        for (text, stays) in
            [("plain", true), ("\u{fc}船🙂", true), ("u\u{308}", false), ("\u{212b}", false), ("", true)]
        {
            assert_eq!(is_composed(text), stays, "{text:?}");
        }
    }
}
