//! Files from elsewhere with anything wrong in them: an error or a result, in bounded memory, and no panic. A little of it
//! on every run of the suite; for long, `cargo run -p plimsoll-run --example fuzz -- --minutes 60`.

mod allocations;
mod damage;
mod finds;
mod harness;
mod targets;

use harness::try_case;
use targets::TARGETS;

/// So many inputs of each kind.
const CASES: u64 = 150;

#[test]
fn damaged_files_are_read_or_refused() {
    harness::be_quiet_about_decoders();
    let here = tempfile::tempdir().expect("a folder");
    for target in &TARGETS {
        for seed in 0..CASES {
            if let Err(problem) = try_case(target, seed, here.path()) {
                panic!("{} with seed {seed}: {problem}", target.name);
            }
        }
    }
}
