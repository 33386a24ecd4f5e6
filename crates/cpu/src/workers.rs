//! How work is divided among threads. The division follows from shapes alone; which thread takes
//! which task does not matter, because no two tasks write to the same place.

use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_graph::CPU_PARTIAL_ROWS;
use plimsoll_runtime::RuntimeError;
use rayon::prelude::*;

use crate::backend::device_error;

/// Elements below which waking a second thread costs more than it saves.
const SERIAL_ELEMENTS: usize = 8 * 1024;

pub(crate) struct Workers {
    count: usize,
    own: bool,
    pool: Option<rayon::ThreadPool>,
}

impl Workers {
    pub(crate) fn new(threads: Option<usize>) -> Self {
        match threads {
            Some(count) => Self { count: count.max(1), own: true, pool: None },
            None => Self { count: rayon::current_num_threads(), own: false, pool: None },
        }
    }

    /// Starts the pool, if it is to be our own.
    pub(crate) fn start(&mut self) -> Result<(), RuntimeError> {
        if self.own && self.count > 1 && self.pool.is_none() {
            let built = rayon::ThreadPoolBuilder::new()
                .num_threads(self.count)
                .thread_name(|index| format!("plimsoll-cpu-{index}"))
                .build()
                .map_err(|error| device_error(format!("{} threads could not be started: {error}", self.count)))?;
            self.pool = Some(built);
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Calls `body(worker, task)` once for every task. No two calls with the same `worker` run at
    /// the same time, so scratch may be indexed by it. Allocates nothing.
    pub(crate) fn for_each(&self, tasks: usize, body: impl Fn(usize, usize) + Sync) {
        let started = !self.own || self.pool.is_some();
        if tasks <= 1 || self.count == 1 || !started {
            (0..tasks).for_each(|task| body(0, task));
            return;
        }
        let next = AtomicUsize::new(0);
        let drain = |worker: usize| {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                body(worker, task);
            }
        };
        let all = || (0..self.count.min(tasks)).into_par_iter().with_max_len(1).for_each(drain);
        match &self.pool {
            Some(pool) => pool.install(all),
            None => all(),
        }
    }

    /// Calls `body` with runs of rows that together are `0..rows`.
    pub(crate) fn rows(&self, rows: usize, cols: usize, body: impl Fn(std::ops::Range<usize>) + Sync) {
        let block = (SERIAL_ELEMENTS / cols.max(1)).max(1);
        self.for_each(rows.div_ceil(block), |_, task| {
            let start = task * block;
            body(start..rows.min(start + block));
        });
    }

    /// Divides `0..rows` into at most [`CPU_PARTIAL_ROWS`] shares, for sums that are kept share by share:
    /// `body(share, rows)`. Returns how many shares there are.
    pub(crate) fn shares(&self, rows: usize, body: impl Fn(usize, std::ops::Range<usize>) + Sync) -> usize {
        let share = rows.div_ceil(CPU_PARTIAL_ROWS).max(1);
        let shares = rows.div_ceil(share);
        self.for_each(shares, |_, index| {
            let start = index * share;
            body(index, start..rows.min(start + share));
        });
        shares
    }
}
