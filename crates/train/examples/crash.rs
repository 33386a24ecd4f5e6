//! Kills a training run again and again and compares what comes out with an undisturbed one.
//!
//! ```text
//! cargo run -p plimsoll-train --example crash -- --kills 500 [--seed N] [--folder DIR]
//! ```

#![expect(clippy::print_stdout, reason = "it says how far it is")]

#[path = "../tests/crash/harness.rs"]
mod harness;
#[path = "../tests/crash/kinds.rs"]
mod kinds;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use harness::{Tally, campaign, work_if_asked};

fn main() {
    if work_if_asked() {
        return;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1)).cloned();
    let number = |name: &str| value(name).map(|text| text.parse::<u64>().expect("a whole number"));
    let kills = number("--kills").unwrap_or(500);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let seed = number("--seed").unwrap_or(now);
    let base = value("--folder").map_or_else(std::env::temp_dir, PathBuf::from).join(format!("crash-{seed}"));
    let this = std::env::current_exe().expect("an executable");
    println!("killing {kills} times in {}, seed {seed}", base.display());
    let began = Instant::now();
    let mut tell = |tally: &Tally| {
        if tally.kills.is_multiple_of(50) {
            println!(
                "{} kills, {} starts, {} runs, {:.0} s",
                tally.kills,
                tally.starts,
                tally.runs,
                began.elapsed().as_secs_f64()
            );
        }
    };
    let Tally { kills, starts, runs } = campaign(&base, kills, seed, &|| Command::new(&this), &mut tell);
    println!("{kills} kills, {starts} starts: all {runs} runs ended bit for bit as the undisturbed one");
    let _ = std::fs::remove_dir_all(&base);
}
