//! The one place that writes to the terminal.
//!
//! Data goes to stdout, everything else to stderr. Nothing is redrawn and nothing is coloured unless
//! stderr is a terminal. A closed pipe ends the writing quietly: `plimsoll plan | head` is no error.

mod example;
mod progress;
mod steps;
mod table;

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};

use plimsoll_run::Failure;

pub use progress::Progress;
pub use steps::{EvalLine, StepLine, StepLog};
pub use table::{Column, Table};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Printer {
    quiet: bool,
    json: bool,
    /// Whether stderr is a terminal.
    terminal: bool,
    colour: bool,
}

#[derive(Clone, Copy)]
enum Colour {
    Red = 31,
    Yellow = 33,
    Cyan = 36,
}

impl Printer {
    /// `quiet` leaves errors, warnings and data; `json` makes the data JSON.
    pub fn new(quiet: bool, json: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let terminal = io::stderr().is_terminal();
        Self { quiet, json, terminal, colour: terminal && !dumb && !set("NO_COLOR") }
    }

    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A result: to stdout.
    pub fn data(&self, text: impl Display) {
        let _ = writeln!(io::stdout().lock(), "{text}");
    }

    /// A part of a result, as it comes: to stdout.
    pub fn piece(&self, text: impl Display) {
        let mut out = io::stdout().lock();
        let _ = write!(out, "{text}").and_then(|()| out.flush());
    }

    /// What stands before something that is typed: to stderr, where that is a terminal.
    pub fn ask(&self, text: impl Display) {
        if self.terminal {
            let _ = write!(io::stderr().lock(), "{text}");
        }
    }

    /// One JSON object on one line: to stdout.
    pub fn json(&self, value: &impl serde::Serialize) {
        match serde_json::to_string(value) {
            Ok(text) => self.data(text),
            Err(error) => self.warning(format!("could not write a result as JSON: {error}")),
        }
    }

    /// A remark: to stderr, unless quiet.
    pub fn note(&self, text: impl Display) {
        if !self.quiet {
            self.line(text);
        }
    }

    /// Something the user asked to see beside the result: to stderr, even when quiet.
    pub fn report(&self, text: impl Display) {
        self.line(text);
    }

    /// Something the user should know, even when quiet.
    pub fn warning(&self, text: impl Display) {
        self.line(format!("{} {text}", self.painted("warning:", Colour::Yellow)));
    }

    pub fn failure(&self, failure: &Failure) {
        self.line(format!("{} {}", self.painted("error:", Colour::Red), failure.message()));
        for hint in &failure.hints {
            self.line(format!("{} {hint}", self.painted("hint:", Colour::Cyan)));
        }
    }

    /// What clap has to say: help and version to stdout, bad usage to stderr.
    pub fn usage(&self, error: &clap::Error) {
        let _ = error.print();
    }

    /// Progress of something with `total` steps; see [`Progress`].
    pub fn progress(&self, what: &'static str, total: u64) -> Progress {
        Progress::new(*self, what, total)
    }

    /// The aligned lines of a training run of `total` updates, above a bar and in a file; see [`StepLog`].
    pub fn steps(&self, total: u64, file: File) -> StepLog {
        StepLog::new(*self, total, file)
    }

    fn line(&self, text: impl Display) {
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    fn painted(&self, text: &str, colour: Colour) -> String {
        if self.colour { format!("\x1b[1;{}m{text}\x1b[0m", colour as u8) } else { text.to_owned() }
    }
}

/// Replaces Rust's panic report by one line; `main` turns the panic into exit code 1.
pub fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        // Damaged files may make a decoder panic; the reader turns that into an error about the file.
        if plimsoll_data::decoding_untrusted() {
            return;
        }
        let payload = info.payload();
        let reason = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("unknown reason");
        let place = info.location().map(|at| format!(" ({}:{})", at.file(), at.line())).unwrap_or_default();
        let failure = Failure::failed(format!("internal error: {reason}{place}"))
            .hint("this is a bug in plimsoll; please report it with the command and the run file");
        Printer::new(false, false).failure(&failure);
    }));
}
