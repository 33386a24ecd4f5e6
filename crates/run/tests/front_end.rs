//! The library as a front end other than the command line uses it.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use plimsoll_run::config::{Overrides, Resolved, Source, load};
use plimsoll_run::{Cause, Event, Memory, Note, Observer, Options, Place, plan, prepare, prepare_bench, quickstart};
use tempfile::TempDir;

fn resolved(settings: &[&str]) -> Resolved {
    let set = settings.iter().map(|setting| (*setting).to_owned()).collect();
    load(quickstart(), &Overrides { set, ..Overrides::default() }).expect("a valid run")
}

#[derive(Default)]
struct Counts {
    started: u32,
    finished: u32,
}

impl Observer for Counts {
    fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::DatasetStarted => self.started += 1,
            Event::DatasetFinished => self.finished += 1,
            Event::Tokenising(_) | Event::CacheSwept { .. } => {}
        }
    }
}

#[test]
fn from_a_configuration_to_trained_weights() {
    let folder = TempDir::new().expect("a temporary folder");
    let out = format!("out={}", folder.path().join("run").display());
    let run = resolved(&["device=cpu", &out, "schedule={steps: 3}", "eval={samples: 2}"]);
    let mut prepared = prepare(&run, Options::default(), &mut ()).expect("prepared");
    assert_eq!((prepared.updates, prepared.rate.total), (3, 3));
    assert!(prepared.notes.iter().any(|note| matches!(note, Note::Stored(_))));
    let mut folder = prepared.begin().expect("a run folder");
    let mut steps = 0;
    let mut observe =
        |event: &plimsoll_train::Event| steps += u32::from(matches!(event, plimsoll_train::Event::Step(_)));
    let outcome = prepared.train(&mut folder, &AtomicBool::new(false), &mut observe).expect("trained");
    assert_eq!((outcome.steps, steps), (3, 3));
    assert!(outcome.saved.join("model.safetensors").exists());
    assert_eq!(prepared.samples().expect("answers").len(), 2);
    let again = prepare(&run, Options::default(), &mut ()).err().expect("the folder holds a run");
    let Cause::Config { key, place: Place::At(_) } = &again.cause else { panic!("{again:?}") };
    assert_eq!(key.as_deref(), Some("out"));
}

#[test]
fn tokenising_is_observed() {
    let folder = TempDir::new().expect("a temporary folder");
    let row = "{\"prompt\": \"1 and 1?\", \"response\": \"2\"}\n";
    let data = folder.path().join("train.jsonl");
    std::fs::write(&data, row.repeat(20)).expect("written");
    for (name, text) in plimsoll_data::quickstart::tokenizer_files() {
        std::fs::write(folder.path().join(name), text).expect("written");
    }
    let settings = format!(
        "data={{train: {data}, eval: {data}, tokenizer: {folder}, mode: memory, max_length: 48}}",
        data = data.display(),
        folder = folder.path().display()
    );
    let out = format!("out={}", folder.path().join("run").display());
    let mut counts = Counts::default();
    let run = resolved(&["device=cpu", &settings, &out, "schedule={steps: 1}"]);
    prepare(&run, Options::default(), &mut counts).expect("prepared");
    assert_eq!((counts.started, counts.finished), (2, 2), "training and evaluation data");
    assert!(!Path::new(&folder.path().join("run")).exists(), "preparing writes no run folder");
}

#[test]
fn plans_and_refusals_are_typed() {
    let planned = plan(&resolved(&["device=H200"]), Options::default()).expect("it fits");
    assert_eq!(planned.report.host.budget_bytes, 2 << 30, "the quickstart's budget beside a GPU");
    let planned = plan(&resolved(&["device=cpu"]), Options::default()).expect("it fits");
    assert_eq!(planned.report.host.budget_bytes, 512 << 20);

    let refused = plan(&resolved(&["device=H200", "memory.gpu=1MiB"]), Options::default()).err().expect("too small");
    let Cause::DoesNotFit(Some(refusal)) = &refused.cause else { panic!("{refused:?}") };
    assert_eq!((refusal.memory, refusal.budget_bytes), (Memory::Gpu, 1 << 20));
    assert!(refusal.needed_bytes > 1 << 20 && !refusal.alternatives.is_empty());

    let pinned = resolved(&["device=cpu", "plan.loss_chunks=100000"]);
    let refused = plan(&pinned, Options::default()).err().expect("too many");
    let Cause::Config { key, .. } = &refused.cause else { panic!("{refused:?}") };
    assert_eq!(key.as_deref(), Some("plan.loss_chunks"));
}

#[test]
fn a_bench_needs_no_data() {
    let mut bench = prepare_bench(&resolved(&["device=cpu"]), Options::default()).expect("prepared");
    let report = bench.run(1, std::time::Instant::now(), &mut |_, _| {}).expect("timed");
    assert!(report.step_ms > 0.0 && report.steps == 1);
}

/// Each layer is read once, whatever it is planned for.
#[test]
fn a_file_is_resolved_without_a_device() {
    let text = "model: tiny\nmemory: {host: {cpu: 1GiB, gpu: 2GiB}}\n";
    let resolved = load(Source::Embedded { name: "run.yaml", text }, &Overrides::default()).expect("valid");
    for part in ["cpu: 1GiB", "gpu: 2GiB"] {
        assert!(resolved.to_yaml().contains(part), "{}", resolved.to_yaml());
    }
    let again = resolved.to_yaml();
    let again = load(Source::Embedded { name: "run.yaml", text: &again }, &Overrides::default()).expect("valid");
    assert_eq!(again.run, resolved.run);
}
