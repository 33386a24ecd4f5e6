//! Every optimizer on a small real run, and states in few bits beside float32.

use plimsoll_data::{Example, ExampleRef};
use plimsoll_graph::ops::AdafactorSettings;
use plimsoll_graph::{OPTIMIZERS, OptimizerSettings, StateStorage};
use plimsoll_models::Recipe;
use plimsoll_train::Model;
use serde_json::json;

use crate::support::{recipe, spec, start, trained_with};

const SEQUENCES: usize = 8;
const MAX_LENGTH: usize = 32;
const VOCABULARY: usize = 96;

/// Its matrices are large enough to be stored in eight bits.
fn model() -> Model {
    let config = json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": VOCABULARY,
    });
    Model::from_shape(config).expect("valid")
}

/// Sequences in which each token follows from the one before, by one of two rules that the first decides.
fn examples(update: u64) -> Vec<Example> {
    let example = |index: usize| {
        let first = (update as usize * SEQUENCES + index) * 31 % VOCABULARY;
        let step = if first.is_multiple_of(2) { 5 } else { 7 };
        let tokens: Vec<u32> = (0..=MAX_LENGTH).map(|at| ((first + at * step) % VOCABULARY) as u32).collect();
        Example {
            targets: tokens[1..].iter().map(|&t| t as i32).collect(),
            tokens: tokens[..MAX_LENGTH].to_vec(),
            ..Example::default()
        }
    };
    (0..SEQUENCES).map(example).collect()
}

/// The loss of each update, and the bytes of optimizer states.
fn curve(optimizer: &str, settings: OptimizerSettings, lr: f64, updates: u64) -> (Vec<f64>, usize) {
    let recipe = Recipe { groups: trained_with(optimizer, settings), ..recipe(None) };
    let mut session = start(&spec(model(), recipe, SEQUENCES, MAX_LENGTH), false).session;
    let losses = (1..=updates).map(|step| {
        let examples = examples(step);
        let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
        let batches = session.pack(&views).expect("fits");
        session.update(&batches, step, lr).expect("runs").loss
    });
    let losses = losses.collect();
    let slots = &session.executor().plan().slots;
    let states = slots.iter().filter(|(_, slot)| slot.name.starts_with("m:") || slot.name.starts_with("v:"));
    (losses, states.map(|(_, slot)| slot.bytes()).sum())
}

#[test]
fn every_optimizer_learns() {
    for &(name, _) in OPTIMIZERS {
        let lr = match name {
            "sgd" => 0.3,
            "lion" => 1e-3,
            "muon" => 0.02,
            _ => 5e-3,
        };
        let momentum = (name == "sgd").then_some(0.9);
        let adafactor =
            AdafactorSettings { relative_step: false, scale_parameter: false, ..AdafactorSettings::default() };
        let settings = OptimizerSettings { momentum, adafactor, ..OptimizerSettings::default() };
        let (losses, _) = curve(name, settings, lr, 40);
        assert!(losses[39] < 0.6 * losses[0], "{name}: {losses:?}");
    }
}

/// The whole curve within two percent, in a quarter of the memory.
#[test]
fn states_in_few_bits_follow_float32() {
    let of = |state| curve("adamw", OptimizerSettings { state, ..OptimizerSettings::default() }, 2e-3, 60);
    let (exact, bytes) = of(StateStorage::Float32);
    assert!(exact[59] < 0.5 * exact[0], "something is learned: {exact:?}");
    for (state, share) in [(StateStorage::Bfloat16, 0.5), (StateStorage::Int8, 0.3)] {
        let (losses, stored) = of(state);
        assert!(stored as f64 <= share * bytes as f64, "{state:?}: {stored} bytes instead of {bytes}");
        assert_ne!(losses, exact, "{state:?} is something else");
        for (update, (loss, exact)) in losses.iter().zip(&exact).enumerate() {
            assert!((loss - exact).abs() < 0.02 * exact, "{state:?}, update {}: {loss} beside {exact}", update + 1);
        }
    }
}
