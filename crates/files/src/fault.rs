//! Faults on purpose: disks that fill up, break or may only be read, and processes that die, at a chosen operation.
//!
//! A fault holds for one thread, so tests run side by side.

use std::cell::Cell;
use std::io;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with this error number of the system, and so do all after it.
    Lasting(i32),
    /// Only this one operation fails.
    Once(i32),
    /// The process is killed before the operation.
    Kill,
}

#[derive(Debug, Clone, Copy)]
struct Armed {
    fault: Option<Fault>,
    at: u64,
    /// Operations so far.
    count: u64,
}

thread_local! {
    static ARMED: Cell<Option<Armed>> = const { Cell::new(None) };
}

/// Runs `work` with the fault at its `at`-th operation, counted from 0. Returns how many operations there were, too.
pub fn inject<T>(fault: Fault, at: u64, work: impl FnOnce() -> T) -> (T, u64) {
    armed(Some(fault), at, work)
}

/// Runs `work` and counts its operations.
pub fn count<T>(work: impl FnOnce() -> T) -> (T, u64) {
    armed(None, 0, work)
}

fn armed<T>(fault: Option<Fault>, at: u64, work: impl FnOnce() -> T) -> (T, u64) {
    let outer = ARMED.replace(Some(Armed { fault, at, count: 0 }));
    let result = work();
    let count = ARMED.replace(outer).map_or(0, |armed| armed.count);
    (result, count)
}

/// Whether the operation that is about to begin fails.
pub(crate) fn next() -> io::Result<()> {
    let Some(mut armed) = ARMED.get() else { return Ok(()) };
    let place = armed.count;
    armed.count += 1;
    ARMED.set(Some(armed));
    match armed.fault {
        Some(Fault::Lasting(number)) if place >= armed.at => Err(io::Error::from_raw_os_error(number)),
        Some(Fault::Once(number)) if place == armed.at => Err(io::Error::from_raw_os_error(number)),
        Some(Fault::Kill) if place == armed.at => kill_self(),
        _ => Ok(()),
    }
}

fn kill_self() -> io::Result<()> {
    // SAFETY: a signal to this very process; nothing of it runs on.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // The signal may take a moment to arrive.
    loop {
        std::thread::park();
    }
}
