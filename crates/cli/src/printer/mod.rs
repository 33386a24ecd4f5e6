//! The one place that writes to the terminal.
//!
//! Data goes to stdout, everything else to stderr. Nothing is redrawn, coloured or wrapped unless there is a terminal, and
//! no text reaches one with control characters in it. A closed pipe ends the writing quietly: `plimsoll plan | head` is no
//! error. A full disk is one; see [`Printer::finish`].
//!
//! All texts come here in English and are put into the user's language here; JSON, scripts and `log.txt` stay as they are.

mod asking;
mod example;
mod help;
mod progress;
mod steps;
mod table;
mod terminal;
mod wrap;

use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use plimsoll_observe::doctor::{Finding, Severity};
use plimsoll_run::{Failure, Note, visible};
use plimsoll_speech::Language;

use wrap::wrapped;

pub use progress::Progress;
pub use steps::{EvalLine, Pace, StepLine, StepLog};
pub use table::{Column, Table};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Printer {
    quiet: bool,
    json: bool,
    /// The width of stderr, where that is a terminal.
    width: Option<usize>,
    /// The width of stdout, where that is a terminal.
    data_width: Option<usize>,
    colour: bool,
    language: Language,
}

#[derive(Clone, Copy)]
enum Colour {
    Red = 31,
    Yellow = 33,
    Cyan = 36,
}

/// Why a result could not be written to stdout; nothing is written behind it.
static UNWRITTEN: OnceLock<io::Error> = OnceLock::new();

impl Printer {
    /// `quiet` leaves errors, warnings and data; `json` makes the data JSON.
    pub fn new(quiet: bool, json: bool, language: Language) -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let (width, data_width) = (terminal::width(io::stderr()), terminal::width(io::stdout()));
        Self { quiet, json, width, data_width, colour: width.is_some() && !dumb && !set("NO_COLOR"), language }
    }

    pub fn language(&self) -> Language {
        self.language
    }

    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether something can be redrawn.
    fn is_terminal(&self) -> bool {
        self.width.is_some()
    }

    /// A result: to stdout.
    pub fn data(&self, text: impl Display) {
        self.verbatim(self.language.say(&text.to_string()));
    }

    /// A result that is nobody's words of ours, such as what a model wrote: to stdout.
    pub fn verbatim(&self, text: impl Display) {
        self.result(&wrapped(&clean(&text.to_string()), self.data_width));
    }

    /// Results: to stdout, with a blank line between two.
    pub fn tables(&self, tables: &[Table]) {
        self.result(&joined(tables, self.data_width, self.language));
    }

    /// A text for other programs, as it is: to stdout.
    pub fn script(&self, text: &str) {
        self.result(text.trim_end_matches('\n'));
    }

    /// A part of a result, as it comes: to stdout.
    pub fn piece(&self, text: impl Display) {
        let mut out = io::stdout().lock();
        let _ = write!(out, "{text}").and_then(|()| out.flush());
    }

    /// What stands before something that is typed: to stderr, where that is a terminal.
    pub fn ask(&self, text: impl Display) {
        if self.is_terminal() {
            let _ = write!(io::stderr().lock(), "{}", self.language.say(&text.to_string()));
        }
    }

    /// One JSON object on one line: to stdout.
    pub fn json(&self, value: &impl serde::Serialize) {
        match serde_json::to_string(value) {
            Ok(text) => self.result(&text),
            Err(error) => self.warning(format!("could not write a result as JSON: {error}")),
        }
    }

    /// A remark: to stderr, unless quiet.
    pub fn note(&self, text: impl Display) {
        self.remarked(&self.language.say(&text.to_string()));
    }

    /// A remark that is in the user's language already, or in whatever language it came.
    pub fn remarked(&self, text: &str) {
        if !self.quiet {
            self.line(&wrapped(&clean(text), self.width));
        }
    }

    /// A line that was asked for beside the result: to stderr, even when quiet.
    pub fn asked(&self, text: impl Display) {
        self.line(&clean(&self.language.say(&text.to_string())));
    }

    /// A remark about a run, or a warning.
    pub fn remark(&self, note: &Note) {
        if note.is_warning() { self.warning(note) } else { self.note(note) }
    }

    /// Tables among the remarks, set apart from them.
    pub fn note_tables(&self, tables: &[Table]) {
        if !self.quiet {
            self.line(&format!("\n{}\n", joined(tables, self.width, self.language)));
        }
    }

    /// Something the user asked to see beside the result: to stderr, even when quiet, with a blank line behind it.
    pub fn report(&self, tables: &[Table]) {
        self.line(&format!("{}\n", joined(tables, self.width, self.language)));
    }

    /// Something the user should know, even when quiet.
    pub fn warning(&self, text: impl Display) {
        self.headed("warning:", Colour::Yellow, &text.to_string());
    }

    pub fn failure(&self, failure: &Failure) {
        self.headed("error:", Colour::Red, &failure.message());
        for hint in &failure.hints {
            self.headed("hint:", Colour::Cyan, hint);
        }
    }

    /// What is wrong with a machine, and what to do about it: to stdout.
    pub fn finding(&self, finding: &Finding) {
        let (word, colour) = match finding.severity {
            Severity::Error => ("error:", Colour::Red),
            Severity::Warning => ("warning:", Colour::Yellow),
            Severity::Info => ("info:", Colour::Cyan),
        };
        self.headed_data(word, colour, &finding.text, &format!(" [{}]", finding.code));
        self.headed_data("hint:", Colour::Cyan, &finding.remedy, "");
    }

    /// What would make something better, beside a result: to stdout.
    pub fn advice(&self, text: &str) {
        self.headed_data("hint:", Colour::Cyan, text, "");
    }

    pub fn has_colour(&self) -> bool {
        self.colour
    }

    /// What clap has to say: help and version to stdout, bad usage to stderr.
    pub fn usage(&self, error: &clap::Error) {
        if self.language == Language::English {
            if let (Err(unwritten), false) = (error.print(), error.use_stderr()) {
                let _ = UNWRITTEN.set(unwritten);
            }
            return;
        }
        let is_error = error.use_stderr();
        let width = if is_error { self.width } else { self.data_width };
        let text = help::said(&error.render().to_string(), self.language, width.unwrap_or(help::WIDTH_MAX));
        let head = self.language.label("error:");
        if is_error { self.line(&text.replacen(head, &self.painted(head, Colour::Red), 1)) } else { self.result(&text) }
    }

    /// Progress of something with `total` steps; see [`Progress`].
    pub fn progress(&self, what: &'static str, total: u64) -> Progress {
        Progress::new(*self, what, total)
    }

    /// The aligned lines of a training run, above a bar and in a file; see [`StepLog`].
    pub fn steps(&self, pace: Pace, file: File) -> StepLog {
        StepLog::new(*self, pace, file)
    }

    /// Whether all results were written. Whoever closed the pipe has seen enough.
    pub fn finish() -> Result<(), Failure> {
        match UNWRITTEN.get() {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::failed(format!("cannot write to stdout: {error}"))
                    .hint("the result is incomplete; free some space, or write it elsewhere"))
            }
            _ => Ok(()),
        }
    }

    fn result(&self, text: &str) {
        if UNWRITTEN.get().is_none() {
            let mut out = io::stdout().lock();
            if let Err(error) = out.write_all(whole(text).as_bytes()).and_then(|()| out.flush()) {
                let _ = UNWRITTEN.set(error);
            }
        }
    }

    /// `behind` is no sentence, and stays as it is.
    fn headed_data(&self, head: &'static str, colour: Colour, text: &str, behind: &str) {
        let (head, gap) = self.head(head);
        let text = wrapped(&format!("{head}{gap}{}{behind}", clean(&self.language.say(text))), self.data_width);
        // Where stdout goes elsewhere, it goes plain.
        let colour = self.data_width.is_some().then(|| self.painted(head, colour));
        self.result(&colour.map_or_else(|| text.clone(), |painted| text.replacen(head, &painted, 1)));
    }

    fn headed(&self, head: &'static str, colour: Colour, text: &str) {
        let (head, gap) = self.head(head);
        let text = wrapped(&format!("{head}{gap}{}", clean(&self.language.say(text))), self.width);
        self.line(&text.replacen(head, &self.painted(head, colour), 1));
    }

    /// What a message begins with, and what stands behind that: a colon of full width needs nothing.
    fn head(&self, head: &'static str) -> (&'static str, &'static str) {
        let said = self.language.label(head);
        (said, if said.is_ascii() { " " } else { "" })
    }

    fn line(&self, text: &str) {
        let _ = io::stderr().lock().write_all(whole(text).as_bytes());
    }

    fn painted(&self, text: &str, colour: Colour) -> String {
        if self.colour { format!("\x1b[1;{}m{text}\x1b[0m", colour as u8) } else { text.to_owned() }
    }
}

/// Text and line end in one write: what else is written, by a signal's handler say, stands on a line of its own.
fn whole(text: &str) -> String {
    format!("{text}\n")
}

/// A text of several lines with nothing else in it that a terminal would obey.
fn clean(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(visible).collect();
    lines.join("\n")
}

fn joined(tables: &[Table], width: Option<usize>, language: Language) -> String {
    let tables: Vec<String> = tables.iter().map(|table| table.within(width, language)).collect();
    tables.join("\n\n")
}

/// Replaces Rust's panic report by one line; `main` turns the panic into exit code 1.
pub fn install_panic_hook(language: Language) {
    std::panic::set_hook(Box::new(move |info| {
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
        Printer::new(false, false, language).failure(&failure);
    }));
}
