//! Sessions on the CPU over the fixtures.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_cpu::CpuBackend;
use plimsoll_cuda::CudaBackend;
use plimsoll_graph::{DType, OptimizerSettings};
use plimsoll_models::{GroupDescription, Lora, ParameterGroup, Recipe, parameter_groups};
use plimsoll_plan::{Budgets, DeviceProfile, Goal, Pins, known_device};
use plimsoll_runtime::Backend;
use plimsoll_train::{DataMemory, Language, Model, Prepared, Seq2Seq, Session, Spec, Task, prepare};
use serde_json::Value as Json;

pub const THREADS: usize = 2;

pub fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/parity").join(family)
}

pub fn json(path: &Path) -> Json {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).expect("valid JSON")
}

pub fn tensors(path: &Path) -> HashMap<String, Vec<f32>> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let floats = |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    file.tensors().into_iter().map(|(name, view)| (name, floats(view.data()))).collect()
}

pub fn recipe(lora: Option<Lora>) -> Recipe {
    let (freeze, groups) = (Vec::new(), trained_by("adamw"));
    Recipe { freeze, groups, clip: Some(1.0), ..Recipe::forward_only(lora, DType::F32) }
}

/// All parameters by one optimizer, as far as it takes them.
pub fn trained_by(name: &str) -> Vec<ParameterGroup> {
    let settings = OptimizerSettings { weight_decay: 0.01, momentum: Some(0.9), ..OptimizerSettings::default() };
    trained_with(name, settings)
}

pub fn trained_with(name: &str, settings: OptimizerSettings) -> Vec<ParameterGroup> {
    let (patterns, optimizer) = (Vec::new(), name.to_owned());
    let rest = GroupDescription { patterns, optimizer, lr: 1.0, settings, decay_vectors: true };
    parameter_groups(&[], &rest).expect("there is one")
}

pub fn spec(model: Model, recipe: Recipe, sequences: usize, max_length: usize) -> Spec {
    spec_for(Arc::new(Language::sft()), model, recipe, sequences, max_length)
}

pub fn spec_for(task: Arc<dyn Task>, model: Model, recipe: Recipe, sequences: usize, max_length: usize) -> Spec {
    let (goal, pins, seed) = (Goal::Fastest, Pins::default(), 7);
    Spec { model, task, recipe, sequences, tokens: None, max_length, goal, pins, seed }
}

/// Set to a card's number, such as `0`, everything here runs on that card instead of the CPU.
const CUDA_VARIABLE: &str = "CONFORMANCE_CUDA";

pub fn on_cuda() -> bool {
    std::env::var(CUDA_VARIABLE).is_ok()
}

fn cpu(threads: usize) -> (Box<dyn Backend>, DeviceProfile) {
    let profile = DeviceProfile::cpu(threads, 8 << 30, 100e9, 50e9, 20e9);
    (Box::new(CpuBackend::new(Some(threads))), profile)
}

/// The device under test.
pub fn device() -> (Box<dyn Backend>, DeviceProfile) {
    let Ok(ordinal) = std::env::var(CUDA_VARIABLE) else { return cpu(THREADS) };
    let backend = CudaBackend::new(ordinal.parse().expect("a card's number")).unwrap_or_else(|e| panic!("{e}"));
    let profile = known_device("H200").map(|p| DeviceProfile { traits: backend.traits(), ..p });
    (Box::new(backend), profile.expect("in the table"))
}

/// Plans and starts with a generous budget.
pub fn start(spec: &Spec, paranoid: bool) -> Prepared {
    start_on(device(), spec, paranoid)
}

/// The same on so many threads of the CPU.
pub fn start_with_threads(spec: &Spec, threads: usize) -> Prepared {
    start_on(cpu(threads), spec, false)
}

fn start_on((backend, device): (Box<dyn Backend>, DeviceProfile), spec: &Spec, paranoid: bool) -> Prepared {
    let budgets = Budgets { gpu_bytes: 8 << 30, host_bytes: 8 << 30 };
    prepare(spec, backend, &device, budgets, &DataMemory::none(), paranoid).expect("fits")
}

/// A session on a fixture's model.
pub fn session(
    family: &str,
    recipe: Recipe,
    sequences: usize,
    max_length: usize,
    change: impl Fn(&mut Spec),
) -> Session {
    let folder = fixture(family).join("model");
    let model = Model::find(folder.to_str().expect("UTF-8")).expect("a model folder");
    let task: Arc<dyn Task> = match model.config.decoder_start {
        Some(start) => Arc::new(Seq2Seq::new(start)),
        None => Arc::new(Language::sft()),
    };
    let mut spec = spec_for(task, model, recipe, sequences, max_length);
    change(&mut spec);
    start(&spec, false).session
}
