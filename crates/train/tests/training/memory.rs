//! Runs whose memory is watched: the kernel's figures come from recordings.

use std::fs;
use std::path::Path;
use std::time::Duration;

use plimsoll_plan::{Categories, DeviceReport, HostCategories, HostReport};
use plimsoll_train::{Event, MemoryWarning, Resume, RunPhase, TrainError, Warning, Watching, run_status};

use crate::run::{Place, Setup};

const MIB: u64 = 1 << 20;

/// A recording of a process of so much on a machine with so much left, and a plan of 100 MiB for it.
fn recorded(root: &Path, resident_mib: u64, available_mib: u64) -> Watching {
    let write = |name: &str, text: String| {
        fs::create_dir_all(root.join("proc/self")).expect("writable");
        fs::write(root.join("proc").join(name), text).expect("writable");
    };
    write("self/status", format!("VmRSS:\t{} kB\nRssAnon:\t{} kB\n", resident_mib << 10, resident_mib << 10));
    write("self/stat", format!("1 (plimsoll) R {}7 0 0\n", "0 ".repeat(8)));
    write("meminfo", meminfo(available_mib));
    let arena = Some(Categories { weights: 60 * MIB, ..Categories::default() });
    let categories = HostCategories { process: 40 * MIB, offload: 0, pinned: 0, data: 0, snapshot: 0, arena };
    Watching {
        root: root.to_owned(),
        interval: Duration::from_millis(1),
        host: HostReport::new(200 * MIB, categories),
        gpu: DeviceReport::new(0, Categories::default()),
    }
}

fn meminfo(available_mib: u64) -> String {
    format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 16 << 20, available_mib << 10)
}

/// Far more updates than it takes to look three times.
const STEPS: u64 = 100_000;

#[test]
fn a_run_that_outgrows_its_plan_saves_and_ends_with_a_report() {
    let place = Place::new();
    let memory = Some(recorded(&place.path("recording"), 500, 8000));
    let setup = || Setup { steps: STEPS, eval_every: None, memory: memory.clone(), ..Setup::full() };
    let error = place.train("run", &setup()).outcome.expect_err("it outgrows its plan");
    let TrainError::Overgrown { step, growth } = &error else { panic!("{error}") };
    assert_eq!((growth.memory, growth.used_bytes, growth.planned_bytes), ("host", 500 * MIB, 100 * MIB));
    assert_eq!(growth.planned, [("weights", 60 * MIB), ("process", 40 * MIB)]);
    assert!(growth.since <= *step, "{error}");
    assert!(error.to_string().contains("100.0 MiB were planned (weights 60.0 MiB, process 40.0 MiB)"), "{error}");
    let saved = Resume::find(&place.path("run")).expect("sound").expect("saved");
    assert_eq!(saved.step(), *step);
    assert_eq!(place.history("run").len() as u64, *step);
    assert_eq!(run_status(&place.path("run")).expect("a run").state, RunPhase::Failed);
    // What it has saved goes on.
    let rest = Setup { steps: STEPS, memory: None, eval_every: None, ..Setup::full() };
    place.train("run", &rest.stopped_after(step + 3)).ok();
    assert_eq!(place.history("run").len() as u64, step + 3);
}

#[test]
fn what_others_take_is_told_once_and_the_run_goes_on() {
    let place = Place::new();
    let recording = place.path("recording");
    let memory = Some(recorded(&recording, 100, 8000));
    // After some updates others take nearly all; it ends a while after that was told.
    let setup = Setup { steps: STEPS, eval_every: None, memory, ..Setup::full() };
    let ran = place.train_until("run", &setup, |events| {
        if events.len() == 50 {
            plimsoll_files::publish(&recording.join("proc/meminfo"), meminfo(100).as_bytes()).expect("writable");
        }
        let told = events.iter().position(|event| matches!(event, Event::Warning { .. }));
        told.is_some_and(|at| events.len() > at + 200)
    });
    let warnings: Vec<&Warning> = (ran.events.iter())
        .filter_map(|event| match event {
            Event::Warning { warning, .. } => Some(warning),
            _ => None,
        })
        .collect();
    let short = MemoryWarning::Short { available_bytes: 100 * MIB, total_bytes: 16 << 30 };
    assert_eq!(warnings, [&Warning::Memory(short)]);
    let Some(Event::Step(step)) = ran.events.iter().rev().find(|event| matches!(event, Event::Step(_))) else {
        panic!("{:?}", ran.outcome)
    };
    assert_eq!((step.host_available_bytes, step.major_faults), (100 * MIB, 7));
    assert!(ran.ok().interrupted);
}
