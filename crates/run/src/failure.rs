//! Why a run cannot go on: a typed cause with its exit code, what is wrong, and what to do about it.

use std::fmt;

use plimsoll_plan::Alternative;

use crate::config::Origin;

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

/// What kind of failure it is, with what a program may want to know of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// Something went wrong while running.
    Failed,
    /// The command line is wrong.
    Usage,
    /// A value of the configuration is wrong or missing.
    Config {
        /// Its dotted path, where the failure is about one key.
        key: Option<String>,
        place: Place,
    },
    /// No plan fits the budget, or the memory was taken by someone else.
    DoesNotFit(Option<Box<Refusal>>),
    /// Data or weights that cannot be used.
    BadInput,
    /// Stopped by the user after the state was saved.
    Interrupted,
}

/// Where a wrong value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Unknown,
    /// Somewhere in this file: the value is missing.
    File(String),
    At(Origin),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Gpu,
    Host,
}

/// What the planner tried before it gave up.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub device: String,
    pub memory: Memory,
    pub budget_bytes: u64,
    /// The smallest budget of that memory that works.
    pub needed_bytes: u64,
    pub alternatives: Vec<Alternative>,
}

/// Why a command stopped. The message names the thing and its value; each hint is something to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    pub cause: Cause,
    /// Without the place, which is part of the cause.
    text: String,
    pub hints: Vec<String>,
}

impl Failure {
    pub fn new(cause: Cause, message: impl Into<String>) -> Self {
        Self { cause, text: message.into(), hints: Vec::new() }
    }

    /// Something went wrong while running: exit code 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Cause::Failed, message)
    }

    /// Bad usage of the command line: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Cause::Usage, message)
    }

    /// Bad configuration, of no single key: exit code 2.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(Cause::Config { key: None, place: Place::Unknown }, message)
    }

    /// A bad value: exit code 2. `key` is empty where it is the whole file that is wrong.
    pub fn config_at(key: &str, origin: &Origin, message: impl Into<String>) -> Self {
        let place = if *origin == Origin::Default { Place::Unknown } else { Place::At(origin.clone()) };
        Self::new(Cause::Config { key: (!key.is_empty()).then(|| key.to_owned()), place }, message)
    }

    /// A value that is nowhere in a file: exit code 2.
    pub fn config_in(key: &str, file: &str, message: impl Into<String>) -> Self {
        Self::new(Cause::Config { key: Some(key.to_owned()), place: Place::File(file.to_owned()) }, message)
    }

    /// No memory for it: exit code 3.
    pub fn does_not_fit(message: impl Into<String>) -> Self {
        Self::new(Cause::DoesNotFit(None), message)
    }

    /// Data or weights that cannot be used: exit code 4.
    pub fn bad_input(message: impl Into<String>) -> Self {
        Self::new(Cause::BadInput, message)
    }

    /// Stopped by the user after the state was saved: exit code 130.
    pub fn interrupted(message: impl Into<String>) -> Self {
        Self::new(Cause::Interrupted, message)
    }

    /// The same failure with one more thing to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub fn code(&self) -> Code {
        match self.cause {
            Cause::Failed => Code::Failed,
            Cause::Usage | Cause::Config { .. } => Code::Usage,
            Cause::DoesNotFit(_) => Code::DoesNotFit,
            Cause::BadInput => Code::BadInput,
            Cause::Interrupted => Code::Interrupted,
        }
    }

    /// What is wrong, with the place where that is known: `run.yaml:2:7: …`.
    pub fn message(&self) -> String {
        match &self.cause {
            Cause::Config { place: Place::At(origin), .. } => format!("{}: {}", origin.place(), self.text),
            Cause::Config { place: Place::File(name), .. } => format!("{name}: {}", self.text),
            _ => self.text.clone(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message())?;
        for hint in &self.hints {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpu => "GPU",
            Self::Host => "host",
        })
    }
}

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
    fn a_value_is_named_with_its_place() {
        let origin = Origin::Set { key: "seed".to_owned() };
        let failure = Failure::config_at("seed", &origin, "`seed` is wrong");
        assert_eq!(failure.to_string(), "error: --set seed: `seed` is wrong");
        assert_eq!(failure.cause, Cause::Config { key: Some("seed".to_owned()), place: Place::At(origin) });
        let failure = Failure::config_at("seed", &Origin::Default, "`seed` is wrong");
        assert_eq!(failure.to_string(), "error: `seed` is wrong");
    }

    #[test]
    fn codes_are_the_promised_ones() {
        let codes = [
            (Failure::failed(""), 1),
            (Failure::usage(""), 2),
            (Failure::config(""), 2),
            (Failure::does_not_fit(""), 3),
            (Failure::bad_input(""), 4),
            (Failure::interrupted(""), 130),
        ];
        for (failure, expected) in codes {
            assert_eq!(failure.code() as u8, expected);
        }
    }
}
