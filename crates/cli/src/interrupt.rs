//! Ctrl-C asks the run to stop after the update it is in, and is answered at once; a second one ends the process.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_speech::Language;

static STOP: AtomicBool = AtomicBool::new(false);
/// Whether there may be a bar on the line that the cursor is in.
static ON_TERMINAL: AtomicBool = AtomicBool::new(false);

const ANSWER: &str = "stopping: finishing the update, then saving; press Ctrl-C again to leave now";
/// The answer in the user's language, as a line.
static SAID: OnceLock<String> = OnceLock::new();
/// To the beginning of the line, which is cleared.
const CLEAR_LINE: &[u8] = b"\r\x1b[2K";

extern "C" fn ask(signal: libc::c_int) {
    // SAFETY: a thread's `errno` is always there; whoever was interrupted may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: restoring the default action is allowed inside a handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
    }
    if ON_TERMINAL.load(Ordering::Relaxed) {
        say(CLEAR_LINE);
    }
    // Reading what was set before the handler was takes no lock.
    say(SAID.get().map_or(b"\n", String::as_bytes));
    // Behind the answer: the signal may be in any thread, and the one that trains ends the process soon after it sees this.
    STOP.store(true, Ordering::Relaxed);
    // SAFETY: as above.
    unsafe {
        *libc::__errno_location() = errno;
    }
}

fn say(text: &[u8]) {
    // SAFETY: `write` is allowed inside a handler, and the text stays. If it fails, nothing can be done here.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
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

/// Listens for Ctrl-C, a polite `kill` and a closed terminal, and returns what they set. A closed terminal stays ignored
/// where it was: that is what `nohup` is for. Ctrl-C does not: shells ignore it for what a script puts into the
/// background, which may be sent it by name all the same.
pub fn listen(language: Language) -> &'static AtomicBool {
    SAID.get_or_init(|| format!("{}\n", language.label(ANSWER)));
    ON_TERMINAL.store(std::io::stderr().is_terminal(), Ordering::Relaxed);
    let handler = ask as extern "C" fn(libc::c_int);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only touches atomics and calls `signal` and `write`, all safe in a handler.
        let before = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        if signal == libc::SIGHUP && before == libc::SIG_IGN {
            // SAFETY: no handler at all.
            unsafe {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
    &STOP
}
