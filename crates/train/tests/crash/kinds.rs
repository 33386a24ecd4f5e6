//! The kinds of runs that are killed. Between them they write everything that a run can leave to the next process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, UNIX_EPOCH};

use plimsoll_cpu::CpuBackend;
use plimsoll_data::{Amount, Dataset, Options, Source, Weighted, quickstart};
use plimsoll_graph::{DType, OptimizerSettings, StateStorage};
use plimsoll_models::{GroupDescription, Lora, ParameterGroup, Recipe, Targets, parameter_groups};
use plimsoll_plan::{Budgets, DeviceProfile, Goal, Pins, SavePin};
use plimsoll_train::{
    BadUpdate, BestBy, DataMemory, Decay, Fit, Guard, Holds, Language, LearningRate, LossScaling, Model, Preference,
    Prepared, Resume, Reward, RunFolder, Saving, Seq2Seq, Session, Spec, Task, TextComparison, fit, prepare,
};
use serde_json::{Value as Json, json};

const STEPS: u64 = 26;
const SEQUENCES: usize = 4;
const MAX_LENGTH: usize = 24;

/// A kind of run, and what of it is not as in the others.
pub struct Kind {
    pub name: &'static str,
    shape: fn() -> Json,
    task: fn() -> Arc<dyn Task>,
    recipe: fn() -> Recipe,
    data: Storage,
    best: BestBy,
    guard: Guard,
    pin: fn(&mut Pins),
    change: fn(&mut Session),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Storage {
    Cached,
    Streamed,
}

const GUARD: Guard = Guard { action: BadUpdate::Stop, limit: 0, spike: None };

/// Everything is trained, on rows in a cache file.
const FULL: Kind = Kind {
    name: "full",
    shape: || llama(16),
    task: || Arc::new(Language::sft()),
    recipe: || recipe("adamw", StateStorage::Float32),
    data: Storage::Cached,
    best: BestBy::Loss,
    guard: GUARD,
    pin: |_| {},
    change: |_| {},
};

pub const KINDS: [Kind; 8] = [
    FULL,
    // Adapters, with dropout, beside weights that were drawn and are kept in the run folder.
    Kind { name: "lora", recipe: || Recipe { lora: Some(lora()), ..(FULL.recipe)() }, ..FULL },
    // Matrices large enough for states in blocks.
    Kind { name: "int8", shape: || llama(64), recipe: || recipe("adamw", StateStorage::Int8), ..FULL },
    Kind { name: "streamed", data: Storage::Streamed, recipe: || recipe("lion", StateStorage::Bfloat16), ..FULL },
    // An encoder that is frozen, and texts that are generated in every evaluation.
    Kind {
        name: "sourced",
        shape: t5,
        task: || Arc::new(Seq2Seq::new(0)),
        recipe: || Recipe { freeze: vec!["encoder*".to_owned()], ..recipe("adafactor", StateStorage::Float32) },
        best: BestBy::Bleu,
        ..FULL
    },
    // The model is asked about all pairs before it is trained.
    Kind { name: "dpo", task: || Arc::new(Preference::dpo(0.1, 0.0)), ..FULL },
    // Gradients overflow, scales fall and rise again, and updates far from the usual are passed over.
    Kind {
        name: "scaled",
        recipe: || Recipe { scaled_loss: true, ..recipe("muon", StateStorage::Float32) },
        guard: Guard { action: BadUpdate::Skip, limit: 1000, spike: Some(1.05) },
        change: overflow,
        ..FULL
    },
    // Parameters are updated while the gradients of others are still to come.
    Kind {
        name: "in-backward",
        task: || Arc::new(Reward::default()),
        recipe: || Recipe { clip: None, ..recipe("sgd", StateStorage::Float32) },
        pin: |pins| {
            pins.micro_batch_tokens = Some(SEQUENCES * MAX_LENGTH);
            pins.update_in_backward = Some(true);
        },
        ..FULL
    },
];

fn llama(hidden: usize) -> Json {
    json!({
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 260,
    })
}

fn t5() -> Json {
    json!({
        "model_type": "t5", "d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 32, "num_layers": 1,
        "num_decoder_layers": 2, "vocab_size": 260, "dropout_rate": 0.1, "decoder_start_token_id": 0,
    })
}

fn recipe(optimizer: &str, state: StateStorage) -> Recipe {
    let settings = OptimizerSettings { state, momentum: Some(0.9), weight_decay: 0.01, ..OptimizerSettings::default() };
    let rest = GroupDescription {
        patterns: Vec::new(),
        optimizer: optimizer.to_owned(),
        lr: 1.0,
        settings,
        decay_vectors: false,
    };
    let groups: Vec<ParameterGroup> = parameter_groups(&[], &rest).expect("there is one");
    Recipe { freeze: Vec::new(), groups, clip: Some(1.0), ..Recipe::forward_only(None, DType::F32) }
}

fn lora() -> Lora {
    Lora { r: 4, alpha: 8.0, dropout: 0.2, targets: Targets::AllLinear, rslora: false }
}

/// A scale and a last norm so large that gradients overflow until the scale has been halved some times.
fn overflow(session: &mut Session) {
    let initial = 2f64.powi(116);
    session.set_loss_scaling(LossScaling { initial, growth_interval: 1, floor: 1.0, ceiling: 2f64.powi(131) });
    let norm = session.parameters().iter().find(|p| p.tensors[0].name == "model.norm.weight").expect("there is one");
    let (slot, elements) = (norm.slot, norm.shape.elements());
    session.executor().write_slot(slot, &vec![64f32; elements]).expect("writable");
}

/// Rows that serve every task.
pub fn rows(task: &dyn Task) -> String {
    let row = |i: u32| {
        let (prompt, right, wrong) = (format!("{i} and {}?", i % 7), format!("{}", i + i % 7), format!("no {i}"));
        if task.content().is_paired() {
            json!({"prompt": prompt, "chosen": right, "rejected": wrong})
        } else {
            json!({"prompt": prompt, "response": right})
        }
    };
    (0..30).map(|i| format!("{}\n", row(i))).collect()
}

impl Kind {
    pub fn rows(&self) -> String {
        rows(&*(self.task)())
    }

    /// Where the rows of all runs lie, given the folder above theirs.
    pub fn rows_path(&self, base: &Path) -> PathBuf {
        base.join(format!("{}.jsonl", self.name))
    }

    fn spec(&self, save: SavePin) -> Spec {
        let mut pins = Pins { micro_batch_tokens: Some(2 * MAX_LENGTH), save, ..Pins::default() };
        (self.pin)(&mut pins);
        Spec {
            model: Model::from_shape((self.shape)()).expect("valid"),
            task: (self.task)(),
            recipe: (self.recipe)(),
            sequences: SEQUENCES,
            tokens: None,
            max_length: MAX_LENGTH,
            goal: Goal::Fastest,
            pins,
            seed: 7,
        }
    }

    fn data(&self, folder: &Path) -> Dataset {
        let tokenizer = quickstart::tokenizer().expect("built in");
        let options = Options { workers: 1, ..Options::new((self.task)().content(), MAX_LENGTH) };
        let rows = self.rows_path(folder.parent().expect("a folder above"));
        let source = Source::open(&[rows.display().to_string()]).expect("opens");
        let sources = vec![Weighted::alone(source)];
        let data = match self.data {
            Storage::Cached => Dataset::cached(sources, &tokenizer, &options, &folder.join("cache"), &mut |_| {}),
            Storage::Streamed => Dataset::streamed(sources, Arc::new(tokenizer), &options, 64 << 10),
        };
        data.expect("usable rows")
    }

    /// A whole run in a folder, or what is left of one.
    pub fn train(&self, folder: &Path, save: SavePin) {
        let mut run = RunFolder::claim(&folder.join("run")).expect("a folder of ours, not in use");
        if run.holds() == Holds::Finished {
            return;
        }
        let resume = Resume::find(run.path()).expect("a killed run leaves no damaged checkpoint");
        let data = self.data(folder);
        let device = DeviceProfile::cpu(1, 8 << 30, 100e9, 50e9, 20e9);
        let budgets = Budgets { gpu_bytes: 8 << 30, host_bytes: 8 << 30 };
        let backend = Box::new(CpuBackend::new(Some(1)));
        let prepared = prepare(&self.spec(save), backend, &device, budgets, &DataMemory::none(), false).expect("fits");
        let Prepared { mut session, report, .. } = prepared;
        let tokenizer = Arc::new(quickstart::tokenizer().expect("built in"));
        session.compare_texts(TextComparison { tokenizer, rows: 4 });
        (self.change)(&mut session);
        run.begin("seed: 7\n", &report, STEPS, resume.as_ref()).expect("writable");
        let stop = AtomicBool::new(false);
        let task = Fit {
            train: &data,
            eval: Some(&data),
            shuffle: true,
            amount: Amount::Sequences(SEQUENCES as u64),
            rate: LearningRate { peak: 1e-2, decay: Decay::Cosine, warmup: 2, total: STEPS, last: 0.1 },
            eval_every: Some(3),
            saving: Saving { every: Some(2), best: Some(self.best), ..Saving::default() },
            guard: self.guard,
            memory: None,
            tokenizer_files: vec![("tokenizer.json".into(), b"{}".to_vec())],
            // The same for all of a kind.
            began: resume.as_ref().and_then(Resume::began).unwrap_or(UNIX_EPOCH + Duration::from_secs(7)),
            resume: resume.as_ref(),
            stop: &stop,
        };
        fit(&mut session, &task, &mut run, &mut |_| {}).expect("trains");
    }
}
