//! How fast a run goes and what it holds, for its outcome.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use plimsoll_runtime::Used;

use crate::{Outcome, Session, UpdateResult};

/// Of so many updates durations are kept: a run's memory does not grow with its length.
const DURATIONS: usize = 4096;

/// What updates took and had so far.
#[derive(Default)]
pub(crate) struct Totals {
    /// Of the newest ones.
    durations_ms: VecDeque<f64>,
    updates: u64,
    took_in_all: Duration,
    tokens: u64,
    all_tokens: u64,
    slots: f64,
    /// Behind the first update, which waits while the feed starts.
    waited: Duration,
    /// Behind the first update.
    took: Duration,
}

impl Totals {
    pub fn count(&mut self, result: &UpdateResult, took: Duration, waited: Duration) {
        if self.updates > 0 {
            self.waited += waited;
            self.took += took;
        }
        if self.durations_ms.len() == DURATIONS {
            self.durations_ms.pop_front();
        }
        self.durations_ms.push_back(took.as_secs_f64() * 1e3);
        self.updates += 1;
        self.took_in_all += took;
        self.tokens += result.amounts.tokens;
        self.all_tokens += result.amounts.all_tokens();
        self.slots += result.amounts.tokens as f64 / result.fill_rate;
    }

    /// `filled_up`: all token slots were computed, whether they held a token or not.
    pub fn settle(self, outcome: &mut Outcome, filled_up: bool) {
        let tokens = self.tokens as f64;
        let seconds = self.took_in_all.as_secs_f64();
        let mut durations_ms = Vec::from(self.durations_ms);
        durations_ms.sort_by(f64::total_cmp);
        let updates = self.updates;
        outcome.step_ms = durations_ms.get(durations_ms.len() / 2).copied().unwrap_or(0.0);
        outcome.tokens_per_s = self.all_tokens as f64 / f64::max(seconds, 1e-9);
        outcome.data_wait_share = self.waited.as_secs_f64() / f64::max(self.took.as_secs_f64(), 1e-9);
        outcome.fill_rate = if updates == 0 { 1.0 } else { tokens / f64::max(self.slots, 1.0) };
        outcome.computed_tokens = if filled_up { self.slots } else { tokens } / updates.max(1) as f64;
    }
}

/// Where the time of an update goes, apart from waiting for data. Each ends when its result is read, so nothing is under
/// way on a device then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases {
    pub forward_backward: Duration,
    pub update: Duration,
}

/// How often the driver is asked what is in use: the answer takes it up to a few milliseconds.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

/// Device memory in use, as last asked.
#[derive(Default)]
pub(crate) struct Gauge {
    asked: Option<Instant>,
    pub bytes: u64,
}

impl Gauge {
    /// The driver's answer, if it was asked again.
    pub fn read(&mut self, session: &mut Session) -> Option<Used> {
        if self.asked.is_some_and(|when| when.elapsed() < GAUGE_INTERVAL) {
            return None;
        }
        self.asked = Some(Instant::now());
        let used = session.executor().backend().used();
        self.bytes = used.map_or(0, |used| used.bytes);
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Amounts, Metrics};

    #[test]
    fn what_is_kept_does_not_grow_with_the_run() {
        let amounts = Amounts { tokens: 10, ..Amounts::default() };
        let result = UpdateResult { loss: 1.0, grad_norm: 1.0, amounts, fill_rate: 1.0, metrics: Metrics::default() };
        let mut totals = Totals::default();
        for update in 0..3 * DURATIONS as u64 {
            totals.count(&result, Duration::from_millis(1 + update), Duration::ZERO);
        }
        assert_eq!(totals.durations_ms.len(), DURATIONS);
        assert_eq!((totals.updates, totals.tokens), (3 * DURATIONS as u64, 30 * DURATIONS as u64));
        assert_eq!(totals.durations_ms.front(), Some(&(2.0 * DURATIONS as f64 + 1.0)), "the newest are kept");
    }
}
