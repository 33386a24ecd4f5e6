//! Faults on purpose: disks that fill up, break or may only be read, and processes that die, at a chosen operation.
//!
//! A fault holds for one thread and those that work on its behalf ([`inherit`]), so tests run side by side.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

#[derive(Debug)]
struct Armed {
    fault: Option<Fault>,
    at: u64,
    /// Operations so far.
    count: u64,
}

/// Shared by the threads that a fault holds for; `None` where nothing is to go wrong.
#[derive(Debug, Clone, Default)]
struct Arming(Option<Arc<Mutex<Armed>>>);

thread_local! {
    static ARMING: RefCell<Arming> = RefCell::default();
}

impl Arming {
    fn armed(&self) -> Option<MutexGuard<'_, Armed>> {
        self.0.as_deref().map(|armed| armed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let outer = ARMING.replace(self.clone());
        let result = work();
        ARMING.replace(outer);
        result
    }
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
    let arming = Arming(Some(Arc::new(Mutex::new(Armed { fault, at, count: 0 }))));
    let result = arming.during(work);
    let count = arming.armed().map_or(0, |armed| armed.count);
    (result, count)
}

/// Wraps the work of another thread, so that the faults of this one hold for it and its operations are counted here.
pub fn inherit<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let arming = ARMING.with_borrow(Arming::clone);
    move || arming.during(work)
}

/// Whether the operation that is about to begin fails.
pub(crate) fn next() -> io::Result<()> {
    ARMING.with_borrow(|arming| {
        let Some(mut armed) = arming.armed() else { return Ok(()) };
        let place = armed.count;
        armed.count += 1;
        match armed.fault {
            Some(Fault::Lasting(number)) if place >= armed.at => Err(io::Error::from_raw_os_error(number)),
            Some(Fault::Once(number)) if place == armed.at => Err(io::Error::from_raw_os_error(number)),
            Some(Fault::Kill) if place == armed.at => kill_self(),
            _ => Ok(()),
        }
    })
}

fn kill_self() -> io::Result<()> {
    // SAFETY: a signal to this very process; nothing of it runs on.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    // The signal may take a moment to arrive.
    loop {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_holds_for_threads_that_inherit_it_and_for_no_others() {
        let (found, operations) = inject(Fault::Once(libc::EIO), 1, || {
            let heir = std::thread::spawn(inherit(|| (next().is_ok(), next().is_ok())));
            let other = std::thread::spawn(|| (next().is_ok(), next().is_ok()));
            (heir.join().expect("no panic"), other.join().expect("no panic"), next().is_ok())
        });
        assert_eq!(found, ((true, false), (true, true), true));
        assert_eq!(operations, 3);
        assert!(next().is_ok());
    }
}
