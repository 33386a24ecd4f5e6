//! What happens while a run is prepared, for whoever wants to show it.

use std::path::Path;

use plimsoll_data::Progress;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// A dataset is about to be tokenised, or opened where that was done before.
    DatasetStarted,
    /// How far tokenising has come.
    Tokenising(Progress),
    DatasetFinished,
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
