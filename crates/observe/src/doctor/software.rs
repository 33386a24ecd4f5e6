//! Driver, libraries, and runs of ours that were left behind.

use super::problem::Problem;
use crate::machine::{KnownRun, Machine};

/// The first driver branch for CUDA 12.
const DRIVER_BRANCH_MIN: u32 = 525;
/// A run that wrote nothing for so long and still holds memory of a card is taken for one that hangs.
const SILENT_S: f64 = 1800.0;

pub fn problems(machine: &Machine) -> Vec<Problem> {
    let driver = &machine.driver;
    let mut found = Vec::new();
    if machine.gpus.is_empty() && driver.version.is_none() {
        found.push(match driver.cards_on_bus {
            0 => Problem::NoCard,
            cards => Problem::NoDriver { cards },
        });
    } else {
        for library in &driver.missing {
            found.push(Problem::MissingLibrary { name: library.name.clone(), install: library.install.clone() });
        }
    }
    if let Some(version) = &driver.version {
        let branch = version.split('.').next().and_then(|branch| branch.parse::<u32>().ok());
        if branch.is_some_and(|branch| branch < DRIVER_BRANCH_MIN) {
            found.push(Problem::OldDriver { version: version.clone() });
        }
    }
    found.extend(stale_runs(machine).map(|(run, bytes)| Problem::StaleRun {
        folder: run.folder.clone(),
        pid: run.pid,
        bytes,
        silent_s: run.silent_s,
    }));
    found
}

/// Runs of ours that hold memory of a card and have not made a step for long, with what they hold.
pub fn stale_runs(machine: &Machine) -> impl Iterator<Item = (&KnownRun, u64)> {
    machine.runs.iter().filter(|run| run.silent_s > SILENT_S).filter_map(|run| {
        let holders = machine.gpus.iter().flat_map(|gpu| &gpu.processes);
        let bytes: u64 = holders.filter(|process| process.pid == run.pid).map(|process| process.bytes).sum();
        (bytes > 0).then_some((run, bytes))
    })
}
