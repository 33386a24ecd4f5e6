//! A folder with a tiny model, some data and a run file, and the program run in it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use plimsoll_data::quickstart;
use serde_json::Value as Json;
use tempfile::TempDir;

/// A Llama whose vocabulary is that of the quickstart's tokenizer.
pub const SHAPE: &str = "model: {family: llama, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, \
    num_key_value_heads: 2, intermediate_size: 64, vocab_size: 260, init: random}\n";

/// Trains `model/` on `train.jsonl`. Pinned, so that no measured speed decides how sums are rounded.
pub const RUN: &str = "\
model: model
data: {train: train.jsonl, eval: train.jsonl, max_length: 32}
batch: {sequences: 4}
optimizer: {lr: 1e-3}
schedule: {steps: 4}
eval: {every: 2}
plan: {micro_batch_tokens: 64}
";

/// What the program said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Said {
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    #[track_caller]
    pub fn json(&self) -> Json {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
}

/// What a checkpoint of a full run consists of.
pub const CHECKPOINT_FILES: [&str; 8] = [
    "config.json",
    "manifest.json",
    "model.safetensors",
    "run.yaml",
    "state.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "training.json",
];

pub struct World {
    folder: TempDir,
}

impl World {
    /// Only a run file.
    pub fn bare(run: &str) -> Self {
        let world = Self { folder: TempDir::new().unwrap() };
        world.write("run.yaml", run);
        world
    }

    /// `model/`, `train.jsonl` and `run.yaml`, which is [`RUN`].
    pub fn new() -> Self {
        let world = Self::bare(RUN);
        for (name, bytes) in model_files() {
            world.write(&format!("model/{name}"), bytes);
        }
        world.write("train.jsonl", rows());
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        let path = self.path(name);
        fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    pub fn json(&self, name: &str) -> Json {
        serde_json::from_slice(&self.read(name)).unwrap()
    }

    /// Replaces a part of a file that must be there.
    pub fn edit(&self, name: &str, from: &str, to: &str) {
        let text = self.text(name);
        assert!(text.contains(from), "{name} has no {from}");
        self.write(name, text.replace(from, to));
    }

    /// Names in a folder, sorted; none if it is not there.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(folder)) else { return Vec::new() };
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Names in a run folder, the curves for TensorBoard as `events`: their name has the time in it.
    pub fn run_names(&self, folder: &str) -> Vec<String> {
        let plain = |name: String| if name.starts_with("events.out.tfevents.") { "events".to_owned() } else { name };
        self.names(folder).into_iter().map(plain).collect()
    }

    /// Every line of a run's metrics.
    pub fn metrics(&self, run: &str) -> Vec<Json> {
        let text = self.text(&format!("{run}/metrics.jsonl"));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The losses of a run's updates, digit by digit.
    pub fn losses(&self, run: &str) -> Vec<String> {
        self.metrics(run).iter().filter(|m| m.get("loss").is_some()).map(|m| m["loss"].to_string()).collect()
    }

    /// The program, to be run in this folder, with nothing inherited that could change what it does.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        isolate(&mut command, self.folder.path());
        command.args(args);
        command
    }

    pub fn run(&self, args: &[&str]) -> Said {
        self.command(args).output().unwrap().into()
    }
}

pub fn isolate(command: &mut Command, folder: &Path) {
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("PLIMSOLL_")) {
        command.env_remove(name);
    }
    // Nor does it speak the language of whoever runs the tests.
    for name in ["LC_ALL", "LC_MESSAGES", "LANG"] {
        command.env_remove(name);
    }
    command.current_dir(folder);
    // Tests that are run in the background of a shell have these ignored, and so would the program.
    let heed_signals = || {
        for signal in [libc::SIGINT, libc::SIGHUP] {
            // SAFETY: restores the default action.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec only `signal` is called, which is allowed there.
    unsafe {
        command.pre_exec(heed_signals);
    }
}

/// Small sums, as questions and answers.
pub fn rows() -> String {
    (1..=24).map(|i| format!("{{\"prompt\": \"{i} and {i}?\", \"response\": \"{}\"}}\n", i + i)).collect()
}

/// A model folder as the program itself writes it, made once.
fn model_files() -> &'static [(String, Vec<u8>)] {
    static FILES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let data = "data: {train: train.jsonl, tokenizer: tokenizer, max_length: 32}\nschedule: {steps: 1}\n";
        let world = World::bare(&format!("{SHAPE}{data}"));
        world.write("train.jsonl", rows());
        for (name, text) in quickstart::tokenizer_files() {
            world.write(&format!("tokenizer/{name}"), text);
        }
        world.run(&["train", "run.yaml", "--out", "made", "--quiet"]).ok();
        let names = world.names("made/final");
        names.into_iter().map(|name| (name.clone(), world.read(&format!("made/final/{name}")))).collect()
    })
}

/// One change to a [`World`], one call of the program, one refusal.
pub struct Refusal<'a> {
    pub args: &'a [&'a str],
    pub code: i32,
    /// The whole of stderr.
    pub expected: &'a str,
}

/// Changes a world, runs the program, and compares all it says. Nothing may be left behind.
#[track_caller]
pub fn refused(change: impl FnOnce(&World), refusal: &Refusal) {
    let world = World::new();
    change(&world);
    refused_in(&world, refusal);
}

#[track_caller]
pub fn refused_in(world: &World, refusal: &Refusal) {
    let before = world.names(".");
    let said = world.run(refusal.args);
    assert_eq!(said.stderr, refusal.expected, "{:?}", refusal.args);
    assert_eq!(said.code, Some(refusal.code), "{:?}", refusal.args);
    assert_eq!(said.stdout, "", "errors go to stderr");
    assert_eq!(world.names("."), before, "nothing is left behind");
}

/// `refused_in` for `train run.yaml --set SETTING`.
#[track_caller]
pub fn refused_set(world: &World, setting: &str, code: i32, expected: &str) {
    let args = ["train", "run.yaml", "--out", "out", "--set", setting];
    refused_in(world, &Refusal { args: &args, code, expected });
}
