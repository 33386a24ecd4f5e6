//! What the rows of a dataset become: all a training task says about its data.

use serde_json::Value;

use crate::error::DataError;
use crate::format::{Format, PAIRS_ACCEPT, RowFormat, detects_pairs};
use crate::read::Row;

/// What rows become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Texts one behind another, cut into sequences; every token bears loss.
    Text,
    /// One sequence per row; answers bear loss.
    Answers,
    /// Two sequences per row, the preferred one first; no token bears loss of its own.
    Pairs,
    /// As `Pairs`; the preferred sequence's last token is marked with the row's margin.
    PairsWithMargin,
    /// As `Pairs`; answers bear loss.
    PairedAnswers,
    /// As `Answers`, of conversations; the last token of each candidate is marked with its relevance.
    Candidates,
    /// One sequence per row with its class; no token bears loss of its own.
    Labelled,
    /// A source and a target per row: the prompt with an end is what the response is conditioned on. The target stream
    /// begins with `decoder_start`; the response and its end bear loss.
    SourceTarget { decoder_start: u32 },
}

impl Content {
    /// Sequences that only mean something together.
    pub fn group(self) -> usize {
        if self.is_paired() { 2 } else { 1 }
    }

    /// Whether rows are comparisons of two sequences.
    pub fn is_paired(self) -> bool {
        matches!(self, Self::Pairs | Self::PairsWithMargin | Self::PairedAnswers)
    }

    /// Whether some tokens have a number of their own.
    pub fn has_marks(self) -> bool {
        matches!(self, Self::PairsWithMargin | Self::Candidates)
    }

    /// Streams of tokens in a micro-batch.
    pub fn streams(self) -> usize {
        if matches!(self, Self::SourceTarget { .. }) { 2 } else { 1 }
    }

    /// Whether each sequence has a class.
    pub fn has_labels(self) -> bool {
        self == Self::Labelled
    }

    /// Whether rows are one text that is cut regardless of where rows end.
    pub fn is_continuous(self) -> bool {
        self == Self::Text
    }

    /// Token ids it needs besides the tokenizer's: one more than the highest.
    pub(crate) fn token_ids(self) -> usize {
        if let Self::SourceTarget { decoder_start } = self { decoder_start as usize + 1 } else { 0 }
    }

    /// What the rows are, judged by one of them: what the user says, or the format that serves this content best.
    pub fn row_format(self, format: Format, row: &Row) -> Result<RowFormat, DataError> {
        let auto = format == Format::Auto;
        let at = || row.at.clone();
        match self {
            // Tables of pairs often carry a conversation for other tasks beside them.
            _ if self.is_paired() && auto && detects_pairs(row) => return Ok(RowFormat::Pairs),
            Self::Labelled if auto => return RowFormat::detect_labelled(row),
            Self::SourceTarget { .. } if auto && RowFormat::has_prompt_and_response(row) => {
                return Ok(RowFormat::PromptResponse);
            }
            _ => {}
        }
        let found = format.resolve(row)?;
        let has_text = row.columns.get("text").is_some_and(Value::is_string);
        match (self, found) {
            (_, RowFormat::Pairs) if self.is_paired() => Ok(found),
            (_, other) if self.is_paired() => {
                Err(DataError::NotPairs { at: at(), found: other.name(), accepted: PAIRS_ACCEPT })
            }
            (_, RowFormat::Pairs) => Err(DataError::OnlyPairs { at: at() }),
            (Self::Candidates, RowFormat::Messages | RowFormat::Conversations) => Ok(found),
            (Self::Candidates, other) => Err(DataError::NoCandidates { at: at(), found: other.name() }),
            (Self::Answers, RowFormat::Prompt) => Err(DataError::NoResponse { at: at() }),
            (Self::Answers | Self::Labelled, _) | (Self::Text, RowFormat::Text) => Ok(found),
            // `auto` prefers the richer format, but here only the text is of use.
            (Self::Text, _) if auto && has_text => Ok(RowFormat::Text),
            (Self::Text, other) => Err(DataError::NotText { at: at(), found: other.name() }),
            (Self::SourceTarget { .. }, RowFormat::PromptResponse) => Ok(found),
            (_, other) => {
                let accepted = RowFormat::PromptResponse.accepts();
                Err(DataError::NotSourceTarget { at: at(), found: other.name(), accepted })
            }
        }
    }
}
