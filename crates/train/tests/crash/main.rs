//! Some kills on every run of the suite. Hundreds: `cargo run -p plimsoll-train --example crash -- --kills 500`.

mod harness;
mod kinds;

use std::path::Path;
use std::process::{Command, Stdio};

use harness::{campaign, work_if_asked};

/// Does nothing but in a process that is started to be killed.
#[test]
fn worker() {
    work_if_asked();
}

#[test]
fn a_killed_run_ends_as_if_it_had_not_been() {
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { tempfile::TempDir::new_in(memory) } else { tempfile::TempDir::new() };
    let base = base.expect("a folder");
    let this = std::env::current_exe().expect("a test executable");
    let start = || {
        let mut command = Command::new(&this);
        command.args(["--exact", "worker", "--nocapture", "--test-threads=1"]).stderr(Stdio::inherit());
        command
    };
    let tally = campaign(base.path(), 40, 20_260_101, &start, &mut |_| {});
    assert_eq!(tally.kills, 40);
    assert!(tally.runs < tally.kills, "most kills are in runs that go on: {tally:?}");
}
