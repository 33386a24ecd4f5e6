//! Reads damaged files of every kind for as long as one likes.
//!
//! ```text
//! cargo run -p plimsoll-run --example fuzz -- --minutes 60 [--seed N] [--only rows.parquet] [--cases N] [--folder DIR]
//! ```
//!
//! Each problem is printed with the seed that repeats it (`--only NAME --seed N --cases 1`). What ends the process itself is
//! named by `current` in the folder.

#![expect(clippy::print_stdout, reason = "it says how far it is")]

#[path = "../tests/untrusted/allocations.rs"]
mod allocations;
#[path = "../tests/untrusted/damage.rs"]
mod damage;
#[path = "../tests/untrusted/harness.rs"]
mod harness;
#[path = "../tests/untrusted/targets.rs"]
mod targets;

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use harness::{be_quiet_about_decoders, input, try_case};
use targets::TARGETS;

/// Seconds that reading one input may take.
const SECONDS_MAX: u64 = 60;

/// What is being read, and since when.
static CURRENT: Mutex<Option<(String, Instant)>> = Mutex::new(None);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1)).cloned();
    let number = |name: &str| value(name).map(|text| text.parse::<u64>().expect("a whole number"));
    let (first, cases) = (number("--seed").unwrap_or(1_000_000), number("--cases").unwrap_or(u64::MAX));
    let (only, limit) = (value("--only"), Duration::from_secs(60 * number("--minutes").unwrap_or(60)));
    let folder = value("--folder").map_or_else(std::env::temp_dir, PathBuf::from).join(format!("fuzz-{first}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    be_quiet_about_decoders();
    std::thread::spawn(watch);
    let began = Instant::now();
    let chosen: Vec<_> = TARGETS.iter().filter(|target| only.as_ref().is_none_or(|only| only == target.name)).collect();
    let (mut problems, mut told, mut done) = (0, began, 0u64);
    'cases: for seed in first..first.saturating_add(cases) {
        for target in &chosen {
            if began.elapsed() > limit {
                break 'cases;
            }
            let name = format!("--only {} --seed {seed} --cases 1", target.name);
            std::fs::write(folder.join("current"), &name).expect("writable");
            *CURRENT.lock().expect("nobody panics with it") = Some((name.clone(), Instant::now()));
            let place = folder.join(target.name);
            let _ = std::fs::remove_dir_all(&place);
            std::fs::create_dir_all(&place).expect("writable");
            if let Err(problem) = try_case(target, seed, &place) {
                problems += 1;
                println!("{name}: {problem}");
                std::fs::write(folder.join(format!("{seed}-{}", target.name)), input(target, seed)).expect("writable");
            }
            done += 1;
        }
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            println!("{done} inputs, {problems} problems, {:.0} s", began.elapsed().as_secs_f64());
        }
    }
    println!("{done} inputs, {problems} problems, {:.0} s", began.elapsed().as_secs_f64());
    std::process::exit(i32::from(problems > 0));
}

/// Ends the process when one input takes too long.
fn watch() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
        if let Some((name, since)) = &*CURRENT.lock().expect("nobody panics with it")
            && since.elapsed() > Duration::from_secs(SECONDS_MAX)
        {
            println!("{name}: it takes more than {SECONDS_MAX} s");
            std::process::exit(1);
        }
    }
}
