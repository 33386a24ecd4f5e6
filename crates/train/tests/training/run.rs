//! Whole runs of a tiny model in a folder: started, disturbed, gone on with.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use plimsoll_data::{Content, Dataset, Options, Source, Weighted, quickstart};
use plimsoll_models::{Lora, ParameterGroup, Recipe, Targets};
use plimsoll_train::{
    Decay, Event, Fit, Guard, Language, LearningRate, Model, Outcome, Prepared, Resume, RunFolder, Saving, Session,
    Spec, TrainError, Watching, fit,
};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::support::{recipe, spec_for, start, trained_by};

pub const MAX_LENGTH: usize = 24;

/// Everything that may differ between two runs.
pub struct Setup {
    pub spec: Spec,
    pub steps: u64,
    pub shuffle: bool,
    pub streamed: bool,
    pub eval_every: Option<u64>,
    pub saving: Saving,
    pub guard: Guard,
    pub memory: Option<Watching>,
    /// Stop after this update.
    pub stop_after: Option<u64>,
    /// Before training begins.
    pub change: fn(&mut Session),
}

pub fn shape(hidden: usize) -> Json {
    json!({
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 260,
    })
}

pub fn lora() -> Lora {
    Lora { r: 4, alpha: 8.0, dropout: 0.2, targets: Targets::AllLinear, rslora: false }
}

/// All parameters by one optimizer, at a multiple of the run's rate.
pub fn faster(optimizer: &str, factor: f64) -> Vec<ParameterGroup> {
    let mut groups = trained_by(optimizer);
    groups.iter_mut().for_each(|group| group.lr_factor = factor);
    groups
}

impl Setup {
    pub fn new(recipe: Recipe) -> Self {
        let model = Model::from_shape(shape(16)).expect("valid");
        let mut spec = spec_for(Arc::new(Language::sft()), model, recipe, 3, MAX_LENGTH);
        spec.pins.micro_batch_tokens = Some(2 * MAX_LENGTH);
        Self {
            spec,
            steps: 7,
            shuffle: true,
            streamed: false,
            eval_every: Some(3),
            saving: Saving { every: Some(2), ..Saving::default() },
            guard: Guard::default(),
            memory: None,
            stop_after: None,
            change: |_| {},
        }
    }

    pub fn full() -> Self {
        Self::new(recipe(None))
    }

    pub fn stopped_after(mut self, step: u64) -> Self {
        self.stop_after = Some(step);
        self
    }
}

/// A folder with data in it and runs beside.
pub struct Place {
    folder: TempDir,
}

/// What a run said and how it ended.
pub struct Ran {
    pub outcome: Result<Outcome, TrainError>,
    pub events: Vec<Event>,
}

impl Ran {
    #[track_caller]
    pub fn ok(self) -> Outcome {
        self.outcome.unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Place {
    pub fn new() -> Self {
        // Where there is one, a disk in memory: thousands of files are synced here.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { TempDir::new_in(memory) } else { TempDir::new() }.expect("a folder");
        let row = |i: u32| json!({"prompt": format!("{i} and {}?", i % 7), "response": format!("{}", i + i % 7)});
        let rows: String = (0..20).map(|i| format!("{}\n", row(i))).collect();
        fs::write(folder.path().join("rows.jsonl"), rows).expect("writable");
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn data(&self, streamed: bool) -> Dataset {
        let tokenizer = quickstart::tokenizer().expect("built in");
        let options = Options { workers: 1, ..Options::new(Content::Answers, MAX_LENGTH) };
        let source = Source::open(&[self.path("rows.jsonl").display().to_string()]).expect("opens");
        let sources = vec![Weighted::alone(source)];
        let data = if streamed {
            Dataset::streamed(sources, Arc::new(tokenizer), &options, 64 << 10)
        } else {
            Dataset::in_memory(sources, &tokenizer, &options, &mut |_| {})
        };
        data.expect("usable rows")
    }

    /// Trains in a folder, from its newest checkpoint if it has one.
    pub fn train(&self, name: &str, setup: &Setup) -> Ran {
        self.train_until(
            name,
            setup,
            |events| matches!(events.last(), Some(Event::Step(step)) if Some(step.step) == setup.stop_after),
        )
    }

    /// The same, until what happened so far is enough.
    pub fn train_until(&self, name: &str, setup: &Setup, is_enough: impl Fn(&[Event]) -> bool) -> Ran {
        let mut events = Vec::new();
        let outcome = self.try_train(name, setup, &is_enough, &mut events);
        Ran { outcome, events }
    }

    fn try_train(
        &self,
        name: &str,
        setup: &Setup,
        is_enough: &dyn Fn(&[Event]) -> bool,
        events: &mut Vec<Event>,
    ) -> Result<Outcome, TrainError> {
        let mut folder = RunFolder::claim(&self.path(name))?;
        let resume = Resume::find(folder.path())?;
        let (train, eval) = (self.data(setup.streamed), self.data(false));
        let Prepared { mut session, report, .. } = start(&setup.spec, false);
        (setup.change)(&mut session);
        folder.begin("seed: 7\n", &report, setup.steps, resume.as_ref())?;
        let stop = AtomicBool::new(false);
        let task = Fit {
            train: &train,
            eval: Some(&eval),
            shuffle: setup.shuffle,
            amount: setup.spec.amount(),
            rate: LearningRate { peak: 1e-2, decay: Decay::Cosine, warmup: 2, total: setup.steps, last: 0.1 },
            eval_every: setup.eval_every,
            saving: setup.saving,
            guard: setup.guard,
            memory: setup.memory.clone(),
            tokenizer_files: vec![("tokenizer.json".into(), b"{}".to_vec())],
            // The same for all, so that their checkpoints are.
            began: resume.as_ref().and_then(Resume::began).unwrap_or(UNIX_EPOCH + Duration::from_secs(7)),
            resume: resume.as_ref(),
            stop: &stop,
        };
        fit(&mut session, &task, &mut folder, &mut |event| {
            events.push(event.clone());
            stop.fetch_or(is_enough(events), Ordering::Relaxed);
        })
    }

    /// Every number of `metrics.jsonl` that training decides, to the bit.
    pub fn history(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name).join("metrics.jsonl")).expect("metrics");
        let line = |line: &str| {
            let json: Json = serde_json::from_str(line).expect("a JSON line");
            let of = |at: &str, key: &str| json.pointer(at).and_then(|value| value.get(key)).cloned();
            format!(
                "{} {:?} {:?} {:?} {:?} {:?}",
                json["step"],
                of("", "loss"),
                of("", "lr"),
                of("", "grad_norm"),
                of("", "tokens"),
                of("/eval", "loss"),
            )
        };
        text.lines().map(line).collect()
    }

    pub fn weights(&self, name: &str) -> Vec<u8> {
        let folder = self.path(name).join("final");
        let names = ["model.safetensors", "adapter_model.safetensors"];
        let path = names.map(|name| folder.join(name)).into_iter().find(|path| path.exists());
        fs::read(path.expect("final weights")).expect("readable")
    }

    #[track_caller]
    pub fn assert_same(&self, one: &str, other: &str) {
        assert_eq!(self.history(one), self.history(other), "{one} and {other}");
        assert!(self.weights(one) == self.weights(other), "{one} and {other} end with the same weights");
    }

    pub fn checkpoints(&self, name: &str) -> Vec<String> {
        names(&self.path(name).join("checkpoints"))
    }
}

/// Sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}
