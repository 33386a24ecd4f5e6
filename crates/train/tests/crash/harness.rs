//! Kills training processes at random moments, starts them again, and compares what comes out with an undisturbed run.
//!
//! A worker trains a tiny model in a folder: it makes a token cache, evaluates, writes checkpoints and final weights.
//! It is killed either from outside, after a random time, or by itself, before a random operation that changes the
//! disk. After every kill the next worker goes on in the same folder. When a run has come to its end, its metrics,
//! its weights and its newest checkpoint must be those of the undisturbed run, to the bit, and a run of the next kind
//! begins. Every other worker writes its checkpoints by a thread of its own while training goes on, also where the
//! one before did not.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_files::fault::{Fault, count, inject};
use plimsoll_plan::SavePin;
use serde_json::Value as Json;

use crate::kinds::{KINDS, Kind};

/// Set for a worker: the folder it works in.
const FOLDER: &str = "CRASH_FOLDER";
/// Set for a worker: the kind of run, by name.
const KIND: &str = "CRASH_KIND";
/// Set for a worker that kills itself: before which operation.
const OPERATION: &str = "CRASH_OPERATION";
/// Set for a worker that writes checkpoints while training goes on.
const BESIDE: &str = "CRASH_BESIDE";

/// Does a worker's work if this process is one.
pub fn work_if_asked() -> bool {
    let Some(folder) = std::env::var_os(FOLDER) else { return false };
    let folder = PathBuf::from(folder);
    let name = std::env::var(KIND).expect("a kind");
    let kind = KINDS.iter().find(|kind| kind.name == name).expect("a known kind");
    let save = if std::env::var_os(BESIDE).is_some() { SavePin::Beside } else { SavePin::Between };
    let operation = std::env::var(OPERATION).ok().map(|text| text.parse().expect("a number"));
    let operations = match operation {
        Some(at) => inject(Fault::Kill, at, || kind.train(&folder, save)).1,
        None => count(|| kind.train(&folder, save)).1,
    };
    fs::write(folder.join("operations"), operations.to_string()).expect("writable");
    true
}

/// A small generator, so that a failure can be repeated with its seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
}

/// What a campaign did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub kills: u64,
    /// Workers that went on from a checkpoint, or began again, and came to the end or were killed in turn.
    pub starts: u64,
    pub runs: u64,
}

/// Makes a command that ends up in [`work_if_asked`].
type Worker<'a> = &'a dyn Fn() -> Command;

/// Kills workers `kills` times, in runs of one kind after another.
///
/// # Panics
/// If a worker fails, or a run ends otherwise than the undisturbed one.
pub fn campaign(base: &Path, kills: u64, seed: u64, worker: Worker<'_>, tell: &mut dyn FnMut(&Tally)) -> Tally {
    fs::create_dir_all(base).expect("writable");
    // A stream's position says which files it is in, so all runs of a kind have the same one.
    KINDS.iter().for_each(|kind| fs::write(kind.rows_path(base), kind.rows()).expect("writable"));
    let references: Vec<Reference> = KINDS.iter().map(|kind| Reference::new(base, kind, worker)).collect();
    let (mut numbers, mut tally) = (Numbers(seed), Tally::default());
    while tally.kills < kills {
        let reference = &references[tally.runs as usize % references.len()];
        let run = Run { reference, folder: prepared_folder(base, "disturbed"), worker };
        tally.runs += 1;
        loop {
            tally.starts += 1;
            if run.killed(&mut numbers, tally.kills < kills) {
                tally.kills += 1;
                tell(&tally);
            } else {
                break;
            }
        }
        let about = format!("run {} ({}) of seed {seed}", tally.runs, reference.kind.name);
        let found = Finished::read(&run.folder);
        assert_eq!(found.history, reference.finished.history, "{about}");
        assert_eq!(found.checkpoints, reference.finished.checkpoints, "{about}");
        let names = |finished: &Finished| finished.files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&found), names(&reference.finished), "{about}");
        for (name, bytes) in &found.files {
            assert!(*bytes == reference.finished.files[name], "{about}: another {name}");
        }
        assert_eq!(leftovers(&run.folder.join("run")), Vec::<String>::new(), "{about}");
    }
    tally
}

/// What an undisturbed run came to.
struct Reference {
    kind: &'static Kind,
    finished: Finished,
    took: Duration,
    operations: u64,
}

impl Reference {
    fn new(base: &Path, kind: &'static Kind, worker: Worker<'_>) -> Self {
        let folder = prepared_folder(base, &format!("undisturbed-{}", kind.name));
        let began = Instant::now();
        let ended = started(worker, kind, &folder, None, false).wait().expect("runs");
        assert!(ended.success(), "the undisturbed run fails: {}", kind.name);
        let took = began.elapsed();
        let operations = fs::read_to_string(folder.join("operations")).expect("written").parse().expect("a number");
        Self { kind, finished: Finished::read(&folder), took, operations }
    }
}

/// A run that is disturbed.
struct Run<'a> {
    reference: &'a Reference,
    folder: PathBuf,
    worker: Worker<'a>,
}

impl Run<'_> {
    /// Starts a worker and kills it if it does not end before; whether it was killed.
    fn killed(&self, numbers: &mut Numbers, may: bool) -> bool {
        let Reference { kind, took, operations, .. } = self.reference;
        let beside = numbers.below(2) == 0;
        let start = |operation| started(self.worker, kind, &self.folder, operation, beside);
        let was_killed = |ended: std::process::ExitStatus| {
            let killed = std::os::unix::process::ExitStatusExt::signal(&ended) == Some(libc::SIGKILL);
            assert!(killed || ended.success(), "a worker of {} fails: {ended}", kind.name);
            killed
        };
        if may && numbers.below(2) == 0 {
            // Most of what is left of a run has fewer operations, so the early ones come up more often.
            let bound = operations / (1 + numbers.below(4));
            return was_killed(start(Some(numbers.below(bound))).wait().expect("runs"));
        }
        let mut child = start(None);
        if may {
            std::thread::sleep(Duration::from_micros(numbers.below(took.as_micros() as u64)));
            child.kill().expect("may be killed");
        }
        was_killed(child.wait().expect("runs"))
    }
}

fn started(
    worker: Worker<'_>,
    kind: &Kind,
    folder: &Path,
    operation: Option<u64>,
    beside: bool,
) -> std::process::Child {
    let mut command = worker();
    command.env(FOLDER, folder).env(KIND, kind.name).env_remove(OPERATION).env_remove(BESIDE).stdout(Stdio::null());
    if beside {
        command.env(BESIDE, "1");
    }
    if let Some(operation) = operation {
        command.env(OPERATION, operation.to_string());
    }
    command.spawn().expect("starts")
}

/// An empty folder.
fn prepared_folder(base: &Path, name: &str) -> PathBuf {
    let folder = base.join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("writable");
    folder
}

/// What a run has come to.
struct Finished {
    /// Lines of the metrics, without what was measured.
    history: Vec<String>,
    /// What checkpoints there are, and where their links lead.
    checkpoints: Vec<String>,
    /// Of the final folder and of the newest checkpoint, by path.
    files: BTreeMap<String, Vec<u8>>,
}

/// What a run measures is never twice the same.
const MEASURED: [&str; 11] = [
    "tokens_per_s",
    "step_ms",
    "data_wait_ms",
    "forward_backward_ms",
    "update_ms",
    "gpu_used_bytes",
    "host_rss_bytes",
    "host_available_bytes",
    "host_swapped_bytes",
    "major_faults",
    "ms",
];

/// Names of files that name the run's own folder, or have the sum of one that does.
const OWN: [&str; 2] = ["adapter_config.json", "manifest.json"];

impl Finished {
    fn read(folder: &Path) -> Self {
        let run = folder.join("run");
        let text = fs::read_to_string(run.join("metrics.jsonl")).expect("metrics");
        let history = text.lines().map(|line| {
            let mut json: Json = serde_json::from_str(line).expect("a JSON line");
            forget_measured(&mut json);
            json.to_string()
        });
        let mut files = BTreeMap::new();
        for part in ["final", "checkpoints/latest", "base"].into_iter().filter(|part| run.join(part).exists()) {
            for entry in fs::read_dir(run.join(part)).expect("readable") {
                let path = entry.expect("readable").path();
                let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
                if !OWN.contains(&name) {
                    files.insert(format!("{part}/{name}"), fs::read(&path).expect("readable"));
                }
            }
        }
        Self { history: history.collect(), checkpoints: checkpoints(&run.join("checkpoints")), files }
    }
}

fn checkpoints(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("readable").map(|entry| entry.expect("readable").path());
    let shown = |path: PathBuf| {
        let name = path.file_name().expect("a name").display().to_string();
        fs::read_link(&path).map_or(name.clone(), |target| format!("{name} -> {}", target.display()))
    };
    let mut names: Vec<String> = entries.map(shown).collect();
    names.sort();
    names
}

fn forget_measured(json: &mut Json) {
    let Some(object) = json.as_object_mut() else { return };
    object.retain(|key, _| !MEASURED.contains(&key.as_str()));
    object.values_mut().for_each(forget_measured);
}

/// What no run leaves behind.
fn leftovers(run: &Path) -> Vec<String> {
    let mut odd = Vec::new();
    for folder in [run.to_owned(), run.join("checkpoints")] {
        for entry in fs::read_dir(folder).expect("readable") {
            let name = entry.expect("readable").file_name().into_string().expect("UTF-8");
            if name.ends_with(".partial") || name.ends_with(".damaged") {
                odd.push(name);
            }
        }
    }
    odd
}
