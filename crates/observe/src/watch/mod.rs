//! A live view of a run folder in the terminal. It reads and never writes: closing it does nothing to the run.

mod curve;
mod data;
mod load;
mod panels;
#[cfg(test)]
mod snapshots;
mod text;
mod view;

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll_speech::Language;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::ObserveError;
use data::Watched;
pub use load::{CardLoad, Load};
use view::View;

/// How often the folder and the machine are looked at.
const REFRESH: Duration = Duration::from_millis(1000);

/// Shows a run until somebody presses `q`; `cards` reads those of this machine.
pub fn watch(
    run: &Path,
    colour: bool,
    language: Language,
    cards: &mut dyn FnMut() -> Vec<CardLoad>,
) -> Result<(), ObserveError> {
    let mut watched = Watched::open(run)?;
    let terminal_error = |error: io::Error| ObserveError::io(Path::new("terminal"), error);
    let mut terminal = ratatui::try_init().map_err(terminal_error)?;
    let mut view = View::new(colour, language);
    let shown = (|| {
        loop {
            let began = Instant::now();
            watched.refresh(cards())?;
            terminal.draw(|frame| view.draw(frame, &watched)).map_err(terminal_error)?;
            // Keys are answered at once, the folder is looked at in its own time.
            while let Some(left) = REFRESH.checked_sub(began.elapsed()) {
                if !event::poll(left).map_err(terminal_error)? {
                    break;
                }
                match event::read().map_err(terminal_error)? {
                    Event::Key(key) if leaves(&key) => return Ok(()),
                    Event::Key(key) if key.kind == KeyEventKind::Press => view.press(key.code),
                    _ => {}
                }
                terminal.draw(|frame| view.draw(frame, &watched)).map_err(terminal_error)?;
            }
        }
    })();
    let restored = ratatui::try_restore().map_err(terminal_error);
    shown.and(restored)
}

fn leaves(key: &KeyEvent) -> bool {
    let interrupt = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}
