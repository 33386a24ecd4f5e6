//! Kills training processes at random moments, starts them again, and compares what comes out with an undisturbed run.
//!
//! A worker trains a tiny model in a folder: it makes a token cache, evaluates, writes checkpoints and final weights.
//! It is killed either from outside, after a random time, or by itself, before a random operation that changes the
//! disk. After every kill the next worker goes on in the same folder. When a run has come to its end, its metrics and
//! its weights must be those of the undisturbed run, to the bit, and the next run begins. Every other worker writes
//! its checkpoints by a thread of their own while training goes on, also where the one before did not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use plimsoll_cpu::CpuBackend;
use plimsoll_data::{Amount, Content, Dataset, Options, Source, Weighted, quickstart};
use plimsoll_files::fault::{Fault, count, inject};
use plimsoll_graph::{DType, OptimizerSettings, optimizer_named};
use plimsoll_models::{ParameterGroup, Recipe};
use plimsoll_plan::{Budgets, DeviceProfile, Goal, Pins, SavePin};
use plimsoll_train::{
    BestBy, DataMemory, Decay, Fit, Guard, Holds, Language, LearningRate, Model, Prepared, Resume, RunFolder, Saving,
    Spec, fit, prepare,
};
use serde_json::{Value as Json, json};

/// Set for a worker: the folder it works in.
const FOLDER: &str = "CRASH_FOLDER";
/// Set for a worker that kills itself: before which operation.
const OPERATION: &str = "CRASH_OPERATION";
/// Set for a worker that writes checkpoints while training goes on.
const BESIDE: &str = "CRASH_BESIDE";

const STEPS: u64 = 14;
const MAX_LENGTH: usize = 24;

/// Does a worker's work if this process is one.
pub fn work_if_asked() -> bool {
    let Some(folder) = std::env::var_os(FOLDER) else { return false };
    let folder = PathBuf::from(folder);
    let save = if std::env::var_os(BESIDE).is_some() { SavePin::Beside } else { SavePin::Between };
    let operation = std::env::var(OPERATION).ok().map(|text| text.parse().expect("a number"));
    let operations = match operation {
        Some(at) => inject(Fault::Kill, at, || train(&folder, save)).1,
        None => count(|| train(&folder, save)).1,
    };
    fs::write(folder.join("operations"), operations.to_string()).expect("writable");
    true
}

fn recipe() -> Recipe {
    let adamw = optimizer_named("adamw", &OptimizerSettings::default()).expect("there is one");
    let groups = vec![ParameterGroup::rest(adamw)];
    let (clip, compute, freeze) = (Some(1.0), DType::F32, Vec::new());
    Recipe {
        lora: None,
        freeze,
        groups,
        clip,
        compute,
        base: None,
        fp8_products: false,
        master: false,
        scaled_loss: false,
    }
}

fn spec(save: SavePin) -> Spec {
    let shape = json!({
        "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 260,
    });
    Spec {
        model: Model::from_shape(shape).expect("valid"),
        task: Arc::new(Language::sft()),
        recipe: recipe(),
        sequences: 4,
        tokens: None,
        max_length: MAX_LENGTH,
        goal: Goal::Fastest,
        pins: Pins { micro_batch_tokens: Some(2 * MAX_LENGTH), save, ..Pins::default() },
        seed: 7,
    }
}

/// A whole run, or what is left of one.
fn train(folder: &Path, save: SavePin) {
    let mut run = RunFolder::claim(&folder.join("run")).expect("a folder of ours, not in use");
    if run.holds() == Holds::Finished {
        return;
    }
    let resume = Resume::find(run.path()).expect("a killed run leaves no damaged checkpoint");
    let tokenizer = quickstart::tokenizer().expect("built in");
    let options = Options { workers: 1, ..Options::new(Content::Answers, MAX_LENGTH) };
    let source = Source::open(&[folder.join("rows.jsonl").display().to_string()]).expect("opens");
    let sources = vec![Weighted::alone(source)];
    let data = Dataset::cached(sources, &tokenizer, &options, &folder.join("cache"), &mut |_| {}).expect("usable rows");
    let device = DeviceProfile::cpu(1, 8 << 30, 100e9, 50e9, 20e9);
    let budgets = Budgets { gpu_bytes: 8 << 30, host_bytes: 8 << 30 };
    let backend = Box::new(CpuBackend::new(Some(1)));
    let prepared = prepare(&spec(save), backend, &device, budgets, &DataMemory::none(), false).expect("fits");
    let Prepared { mut session, report, .. } = prepared;
    run.begin("seed: 7\n", &report, STEPS, resume.as_ref()).expect("writable");
    let stop = AtomicBool::new(false);
    let task = Fit {
        train: &data,
        eval: Some(&data),
        shuffle: true,
        amount: Amount::Sequences(4),
        rate: LearningRate { peak: 1e-2, decay: Decay::Cosine, warmup: 2, total: STEPS, last: 0.1 },
        eval_every: Some(3),
        saving: Saving { every: Some(2), best: Some(BestBy::Loss), ..Saving::default() },
        guard: Guard::default(),
        memory: None,
        tokenizer_files: vec![("tokenizer.json".into(), b"{}".to_vec())],
        resume: resume.as_ref(),
        stop: &stop,
    };
    fit(&mut session, &task, &mut run, &mut |_| {}).expect("trains");
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

/// Kills workers `kills` times. `worker` makes a command that ends up in [`work_if_asked`].
///
/// # Panics
/// If a worker fails, or a run ends otherwise than the undisturbed one.
pub fn campaign(
    base: &Path,
    kills: u64,
    seed: u64,
    worker: &dyn Fn() -> Command,
    tell: &mut dyn FnMut(&Tally),
) -> Tally {
    let undisturbed = prepared_folder(base, "undisturbed");
    let began = Instant::now();
    let ended = started(worker, &undisturbed, None, false).wait().expect("runs");
    assert!(ended.success(), "the undisturbed run fails");
    let took = began.elapsed();
    let operations: u64 =
        fs::read_to_string(undisturbed.join("operations")).expect("written").parse().expect("a number");
    let expected = result(&undisturbed);

    let (mut numbers, mut tally) = (Numbers(seed), Tally::default());
    while tally.kills < kills {
        let folder = prepared_folder(base, "disturbed");
        tally.runs += 1;
        loop {
            tally.starts += 1;
            if killed(worker, &folder, &mut numbers, operations, took, tally.kills < kills) {
                tally.kills += 1;
                tell(&tally);
            } else {
                break;
            }
        }
        let found = result(&folder);
        assert_eq!(found.history, expected.history, "run {} of seed {seed}", tally.runs);
        assert!(found.weights == expected.weights, "run {} of seed {seed}: other weights", tally.runs);
        let odd: Vec<String> = leftovers(&folder.join("run"));
        assert_eq!(odd, Vec::<String>::new(), "run {} of seed {seed}", tally.runs);
    }
    tally
}

/// Starts a worker and kills it if it does not end before; whether it was killed.
fn killed(
    worker: &dyn Fn() -> Command,
    folder: &Path,
    numbers: &mut Numbers,
    operations: u64,
    took: Duration,
    may: bool,
) -> bool {
    let beside = numbers.below(2) == 0;
    if may && numbers.below(2) == 0 {
        // Most of what is left of a run has fewer operations, so the early ones come up more often.
        let bound = operations / (1 + numbers.below(4));
        let at = numbers.below(bound);
        let ended = started(worker, folder, Some(at), beside).wait().expect("runs");
        let by_itself = std::os::unix::process::ExitStatusExt::signal(&ended) == Some(libc::SIGKILL);
        assert!(by_itself || ended.success(), "a worker fails: {ended}");
        return by_itself;
    }
    let mut child = started(worker, folder, None, beside);
    if may {
        std::thread::sleep(Duration::from_micros(numbers.below(took.as_micros() as u64)));
        child.kill().expect("may be killed");
    }
    let ended = child.wait().expect("runs");
    let from_outside = std::os::unix::process::ExitStatusExt::signal(&ended) == Some(libc::SIGKILL);
    assert!(from_outside || ended.success(), "a worker fails: {ended}");
    from_outside
}

fn started(worker: &dyn Fn() -> Command, folder: &Path, operation: Option<u64>, beside: bool) -> std::process::Child {
    let mut command = worker();
    command.env(FOLDER, folder).env_remove(OPERATION).env_remove(BESIDE).stdout(Stdio::null());
    if beside {
        command.env(BESIDE, "1");
    }
    if let Some(operation) = operation {
        command.env(OPERATION, operation.to_string());
    }
    command.spawn().expect("starts")
}

/// A folder with data and nothing else.
fn prepared_folder(base: &Path, name: &str) -> PathBuf {
    let folder = base.join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("writable");
    let row = |i: u32| json!({"prompt": format!("{i} and {}?", i % 7), "response": format!("{}", i + i % 7)});
    let rows: String = (0..30).map(|i| format!("{}\n", row(i))).collect();
    fs::write(folder.join("rows.jsonl"), rows).expect("writable");
    folder
}

/// What a run has come to.
struct Finished {
    history: Vec<String>,
    weights: Vec<u8>,
}

fn result(folder: &Path) -> Finished {
    let text = fs::read_to_string(folder.join("run/metrics.jsonl")).expect("metrics");
    let line = |line: &str| {
        let json: Json = serde_json::from_str(line).expect("a JSON line");
        format!("{} {} {} {} {}", json["step"], json["loss"], json["lr"], json["grad_norm"], json["eval"]["loss"])
    };
    let weights = fs::read(folder.join("run/final/model.safetensors")).expect("final weights");
    Finished { history: text.lines().map(line).collect(), weights }
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
