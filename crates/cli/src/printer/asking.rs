//! Questions on a terminal.

use std::io::{self, IsTerminal};

use plimsoll_run::Failure;

use super::Printer;

impl Printer {
    /// Whether there is somebody to ask.
    pub fn can_ask(&self) -> bool {
        self.is_terminal() && io::stdin().is_terminal() && !self.quiet && !self.json
    }

    /// What is typed behind a question and `marks`, which are no words, without blanks around it. An end of the input is no
    /// answer: exit code 130.
    pub fn answer(&self, question: &str, marks: &str) -> Result<String, Failure> {
        self.ask(format!("{}{marks}", self.language.word(question)));
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line);
        match read.map_err(|error| Failure::failed(format!("the answer cannot be read: {error}")))? {
            0 => {
                // The prompt's line has no end yet.
                self.ask("\n");
                Err(Failure::interrupted("no answer: nothing was written"))
            }
            _ => Ok(line.trim().to_owned()),
        }
    }

    /// Yes or no; no where there is nobody to ask.
    pub fn confirm(&self, question: &str) -> Result<bool, Failure> {
        if !self.can_ask() {
            return Ok(false);
        }
        Ok(matches!(self.answer(question, " [y/N] ")?.to_ascii_lowercase().as_str(), "y" | "yes"))
    }
}
