//! What happens while a run is prepared, for whoever wants to show it.

use std::path::Path;

use plimsoll_data::Progress;
use plimsoll_plan::Report;

use crate::note::Note;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// A dataset is about to be tokenised, or opened where that was done before.
    DatasetStarted,
    /// How far tokenising has come.
    Tokenising(Progress),
    DatasetFinished,
    /// The plan is made, and the weights are about to be read or drawn. What the process itself takes may still be stated
    /// anew.
    Planned {
        report: &'a Report,
        notes: &'a [Note],
    },
    /// How much of the weights is in memory.
    Weights {
        done_bytes: u64,
        total_bytes: u64,
    },
    /// Token caches that nobody used for a month were removed.
    CacheSwept {
        folder: &'a Path,
        files: u64,
        bytes: u64,
    },
}

pub trait Observer {
    fn observe(&mut self, event: Event<'_>);
}

/// Nobody watches.
impl Observer for () {
    fn observe(&mut self, _: Event<'_>) {}
}
