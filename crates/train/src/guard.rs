//! Updates whose numbers are none, or far from the usual: the run stops at the last good state, or passes over them.

use serde::{Deserialize, Serialize};

/// What is done about a bad update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BadUpdate {
    /// The run stops; the state before the update is saved.
    #[default]
    Stop,
    /// The update is made of the next data instead.
    Skip,
}

/// What counts as a bad update, and what is done about one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guard {
    pub action: BadUpdate,
    /// Updates that may be passed over in a run; one more stops it.
    pub limit: u64,
    /// A loss so many times the usual one is bad; without it, only one that is not finite is.
    pub spike: Option<f64>,
}

/// Of updates passed over, unless another number is asked for.
const LIMIT: u64 = 10;

impl Default for Guard {
    fn default() -> Self {
        Self { action: BadUpdate::Stop, limit: LIMIT, spike: None }
    }
}

/// What the guard has seen. Part of a checkpoint: it decides which updates are passed over.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct GuardState {
    pub skipped: u64,
    /// Losses seen, as many as it takes to know the usual one.
    seen: u64,
    usual: f64,
}

/// Updates until the usual loss is known well enough to compare with; from then on the newest counts for one in so many.
const SETTLED: u64 = 20;

impl GuardState {
    pub fn count(&mut self, loss: f64) {
        self.seen = (self.seen + 1).min(SETTLED);
        self.usual += (loss - self.usual) / self.seen as f64;
    }

    /// The usual loss, if this one is a spike above it.
    pub fn spike(&self, loss: f64, guard: &Guard) -> Option<f64> {
        let factor = guard.spike.filter(|_| self.seen >= SETTLED)?;
        (loss > factor * self.usual).then_some(self.usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spike_is_measured_against_recent_losses() {
        let guard = Guard { spike: Some(3.0), ..Guard::default() };
        let mut state = GuardState::default();
        for _ in 0..SETTLED - 1 {
            state.count(4.0);
            assert_eq!(state.spike(100.0, &guard), None, "nothing is usual yet");
        }
        state.count(4.0);
        assert_eq!(state.spike(12.5, &guard), Some(4.0));
        assert_eq!(state.spike(11.9, &guard), None);
        assert_eq!(state.spike(100.0, &Guard::default()), None);
        for _ in 0..200 {
            state.count(1.0);
        }
        assert!(state.spike(3.1, &guard).is_some(), "the usual loss has fallen");
    }
}
