//! Ctrl-C asks the run to stop after the update it is in; a second one ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn ask(signal: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
    // SAFETY: restoring the default action is allowed inside a handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
    }
}

/// Ctrl-C ends the process again, and what was asked is forgotten.
pub fn ignore() {
    STOP.store(false, Ordering::Relaxed);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: restores the default action.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Listens for Ctrl-C, a polite `kill` and a closed terminal, and returns what they set.
pub fn listen() -> &'static AtomicBool {
    let handler = ask as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic and calls `signal`, both safe in a handler.
        unsafe {
            libc::signal(signal, handler as libc::sighandler_t);
        }
    }
    &STOP
}
