//! What Plimsoll says to people, in English or in Chinese.
//!
//! Everything below the front end speaks English: its messages are what scripts, `--json`, `log.txt` and bug reports have.
//! Whoever shows a text to a person puts it through [`Language::say`], which looks for the sentence in a catalogue of
//! English templates and their translations (`zh/*.txt`). A sentence that is not there is shown as it is.

mod catalogue;
mod language;
mod phrases;
mod template;

pub use catalogue::{Catalogue, Entry, chinese};
pub use language::Language;
pub use template::{Hole, Template};
