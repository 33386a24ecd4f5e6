//! The one error the user sees: an exit code, what is wrong, and what to do about it.

use std::fmt;

/// The promised exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Failed while running.
    Failed = 1,
    /// Bad usage or configuration.
    Usage = 2,
    /// Does not fit the memory budget.
    DoesNotFit = 3,
    /// Bad data or weights.
    BadInput = 4,
    /// Interrupted; the state was saved.
    Interrupted = 130,
}

/// Why a command stopped. The message names the thing and its value; each hint is something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub message: String,
    pub hints: Vec<String>,
}

impl Failure {
    /// Errors of the libraries carry their hints in their text, each after a line break and `hint: `.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        let text = text.into();
        let mut parts = text.split("\nhint: ").map(str::to_owned);
        Self { code, message: parts.next().unwrap_or_default(), hints: parts.collect() }
    }

    /// Something went wrong while running: exit code 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Code::Failed, message)
    }

    /// Bad usage or configuration: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// No plan fits the budget: exit code 3. A hint must name the smallest budget that would.
    pub fn does_not_fit(message: impl Into<String>) -> Self {
        Self::new(Code::DoesNotFit, message)
    }

    /// Data or weights that cannot be used: exit code 4.
    pub fn bad_input(message: impl Into<String>) -> Self {
        Self::new(Code::BadInput, message)
    }

    /// Stopped by the user after the state was saved: exit code 130.
    pub fn interrupted(message: impl Into<String>) -> Self {
        Self::new(Code::Interrupted, message)
    }

    /// The same failure with one more thing to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        for hint in &self.hints {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_message_and_every_hint() {
        let failure =
            Failure::does_not_fit("the smallest plan needs 3.00 GiB").hint("use --gpu 3.1GiB").hint("or method: lora");
        assert_eq!(
            failure.to_string(),
            "error: the smallest plan needs 3.00 GiB\nhint: use --gpu 3.1GiB\nhint: or method: lora"
        );
    }

    #[test]
    fn takes_the_hints_out_of_a_text() {
        let failure = Failure::bad_input("cannot read a.jsonl: gone\nhint: check the path under `data:`");
        assert_eq!(failure.message, "cannot read a.jsonl: gone");
        assert_eq!(failure.hints, ["check the path under `data:`"]);
    }

    #[test]
    fn codes_are_the_promised_ones() {
        let codes = [
            (Failure::failed(""), 1),
            (Failure::usage(""), 2),
            (Failure::does_not_fit(""), 3),
            (Failure::bad_input(""), 4),
            (Failure::interrupted(""), 130),
        ];
        for (failure, expected) in codes {
            assert_eq!(failure.code as u8, expected);
        }
    }
}
