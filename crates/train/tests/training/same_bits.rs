//! One micro-batch size, any memory plan: the same losses and the same weights, to the bit.

use std::collections::BTreeMap;

use crate::support::{recipe, spec, start, start_with_threads};
use plimsoll_data::{Example, ExampleRef};
use plimsoll_graph::{SlotId, WeightFormat};
use plimsoll_models::{Lora, Recipe, Targets};
use plimsoll_plan::Goal;
use plimsoll_train::{Model, Prepared, Spec};
use serde_json::json;

pub(crate) const SEQUENCES: usize = 6;
pub(crate) const MAX_LENGTH: usize = 40;
const STEPS: u64 = 4;

pub(crate) fn model() -> Model {
    let config = json!({
        "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 131,
    });
    Model::from_shape(config).expect("valid")
}

/// Sequences of different lengths, so that micro-batches are partly filled.
pub(crate) fn examples() -> Vec<Example> {
    let mut state = 12_345u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    (0..SEQUENCES)
        .map(|i| {
            let tokens: Vec<u32> = (0..=(7 + 6 * i)).map(|_| next() % 131).collect();
            let targets = tokens[1..].iter().map(|&t| t as i32).collect();
            Example { tokens: tokens[..tokens.len() - 1].to_vec(), targets, ..Example::default() }
        })
        .collect()
}

pub(crate) struct Trained {
    pub(crate) losses: Vec<f64>,
    pub(crate) weights: Vec<u32>,
    pub(crate) arena_bytes: u64,
}

fn train(spec: &Spec, paranoid: bool) -> Trained {
    train_on(&examples(), spec, paranoid)
}

pub(crate) fn train_on(examples: &[Example], spec: &Spec, paranoid: bool) -> Trained {
    run(examples, start(spec, paranoid))
}

fn run(examples: &[Example], mut prepared: Prepared) -> Trained {
    let arena_bytes = prepared.report.layout.arena_bytes;
    let session = &mut prepared.session;
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    let batches = session.pack(&views).expect("fits");
    let losses = (1..=STEPS).map(|step| session.update(&batches, step, 3e-3).expect("runs").loss).collect();
    let slots: Vec<SlotId> = session.parameters().iter().map(|p| p.slot).collect();
    let mut weights = Vec::new();
    for slot in slots {
        let bytes = session.executor().plan().slot(slot).bytes;
        let mut values = vec![0u32; bytes / size_of::<u32>()];
        session.executor().read_slot(slot, &mut values).expect("readable");
        weights.extend(values);
    }
    Trained { losses, weights, arena_bytes }
}

/// Plans that differ in what is recomputed in how many layers, in layout and in checking.
fn variants(recipe: &Recipe, tokens: usize) -> Vec<(String, Spec, bool)> {
    let base = || {
        let mut spec = spec(model(), recipe.clone(), SEQUENCES, MAX_LENGTH);
        spec.pins.micro_batch_tokens = Some(tokens);
        spec.pins.loss_chunks = Some(2);
        spec.pins.recompute = Some(BTreeMap::new());
        spec
    };
    let dropping = |classes: &[(&str, usize)]| {
        let mut spec = base();
        spec.pins.recompute = Some(classes.iter().map(|(c, k)| ((*c).to_owned(), *k)).collect());
        spec
    };
    let all = [
        ("attn_norm", 4),
        ("qkv", 4),
        ("qk_norm", 0),
        ("rotated", 4),
        ("attn_out", 4),
        ("residual_mid", 4),
        ("mlp_norm", 4),
        ("gate_up", 4),
        ("mlp_act", 4),
    ];
    let all: Vec<(&str, usize)> = all.into_iter().filter(|(_, k)| *k > 0).collect();
    let mut lowest = base();
    lowest.pins.recompute = None;
    lowest.goal = Goal::Lowest;
    let mut plans = vec![
        ("keep everything".into(), base(), false),
        ("keep everything, paranoid".into(), base(), true),
        ("norms in two layers".into(), dropping(&[("attn_norm", 2), ("mlp_norm", 2)]), false),
        ("activation in all layers".into(), dropping(&[("mlp_act", 4)]), false),
        (
            "gate and up in three, attention in one".into(),
            dropping(&[("gate_up", 3), ("attn_out", 1), ("rotated", 1)]),
            true,
        ),
        ("middle of the layer".into(), dropping(&[("residual_mid", 4), ("mlp_norm", 4)]), false),
        ("everything".into(), dropping(&all), false),
        ("everything, paranoid".into(), dropping(&all), true),
    ];
    plans.push(("lowest".into(), lowest, false));
    plans
}

/// One plan on any number of threads: sums are divided by shape only.
#[test]
fn threads_do_not_show_in_the_bits() {
    for recipe in [
        recipe(None),
        recipe(Some(Lora { r: 4, alpha: 8.0, dropout: 0.1, targets: Targets::AllLinear, rslora: false })),
    ] {
        let (_, spec, _) = variants(&recipe, 3 * MAX_LENGTH).swap_remove(0);
        let trained = [1, 2, 5].map(|threads| run(&examples(), start_with_threads(&spec, threads)));
        for other in &trained[1..] {
            assert_eq!(other.losses, trained[0].losses);
            assert!(other.weights == trained[0].weights);
        }
    }
}

fn check(recipe: &Recipe) {
    check_with(recipe, |_| ());
}

/// Of whatever `change` makes of all plans.
pub(crate) fn check_with(recipe: &Recipe, change: fn(&mut Spec)) {
    let mut reference: Option<Trained> = None;
    let mut sizes = Vec::new();
    for (name, mut spec, paranoid) in variants(recipe, 3 * MAX_LENGTH) {
        change(&mut spec);
        let trained = train(&spec, paranoid);
        sizes.push(trained.arena_bytes);
        match &reference {
            None => reference = Some(trained),
            Some(first) => {
                assert_eq!(first.losses, trained.losses, "{name}: losses");
                assert_eq!(first.weights, trained.weights, "{name}: weights");
            }
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    assert!(sizes.len() >= 5, "the plans really differ: {sizes:?}");
}

#[test]
fn full_training_does_not_depend_on_the_plan() {
    check(&recipe(None));
}

#[test]
fn lora_with_dropout_does_not_depend_on_the_plan() {
    let lora = Lora { r: 4, alpha: 8.0, dropout: 0.2, targets: Targets::AllLinear, rslora: false };
    check(&recipe(Some(lora)));
}

/// Whatever the frozen base is stored in, and whether its codes are multiplied or decoded.
#[test]
fn a_base_in_few_bits_does_not_depend_on_the_plan() {
    let lora = Lora { r: 4, alpha: 8.0, dropout: 0.2, targets: Targets::AllLinear, rslora: false };
    for (format, fp8_products) in [
        (WeightFormat::Nf4, false),
        (WeightFormat::Int8, false),
        (WeightFormat::E4m3, false),
        (WeightFormat::E4m3, true),
    ] {
        check(&Recipe { base: Some(format), fp8_products, ..recipe(Some(lora.clone())) });
    }
}

fn in_mlp_chunks(spec: &mut Spec) {
    spec.pins.mlp_chunks = Some(3);
}

/// Chunks of 48 rows: of micro-batches that are partly filled, some are cut off and some empty.
#[test]
fn an_mlp_in_chunks_does_not_depend_on_the_plan() {
    let lora = Lora { r: 4, alpha: 8.0, dropout: 0.2, targets: Targets::AllLinear, rslora: false };
    let adapters = recipe(Some(lora));
    check_with(&recipe(None), in_mlp_chunks);
    check_with(&adapters, in_mlp_chunks);
    check_with(&Recipe { base: Some(WeightFormat::E4m3), fp8_products: true, ..adapters }, in_mlp_chunks);
}

/// Every row is the same as without chunks, dropout included, but for the order of sums: those over rows, and on a card
/// those of a product, whose kernel depends on how many rows there are.
#[test]
fn chunks_of_an_mlp_change_nothing_but_rounding() {
    let lora = Lora { r: 4, alpha: 8.0, dropout: 0.2, targets: Targets::AllLinear, rslora: false };
    for recipe in [recipe(None), recipe(Some(lora))] {
        let losses = |chunks: usize| {
            let mut spec = spec(model(), recipe.clone(), SEQUENCES, MAX_LENGTH);
            spec.pins.micro_batch_tokens = Some(3 * MAX_LENGTH);
            spec.pins.mlp_chunks = Some(chunks);
            train(&spec, false).losses
        };
        let whole = losses(1);
        for chunks in [2, 3, 8] {
            for (step, (a, b)) in whole.iter().zip(losses(chunks)).enumerate() {
                assert!((a - b).abs() < 1e-5 * a.abs(), "{chunks} chunks, step {step}: {a} and {b}");
            }
        }
    }
}

/// Other micro-batches sum in another order: equal within rounding, dropout included.
#[test]
fn micro_batches_change_nothing_but_rounding() {
    let lora = Lora { r: 4, alpha: 8.0, dropout: 0.2, targets: Targets::AllLinear, rslora: false };
    for recipe in [recipe(None), recipe(Some(lora))] {
        let losses = |tokens: usize| {
            let mut spec = spec(model(), recipe.clone(), SEQUENCES, MAX_LENGTH);
            spec.pins.micro_batch_tokens = Some(tokens);
            train(&spec, false).losses
        };
        let reference = losses(MAX_LENGTH);
        for tokens in [2 * MAX_LENGTH, 3 * MAX_LENGTH + 5, 6 * MAX_LENGTH] {
            for (step, (a, b)) in reference.iter().zip(losses(tokens)).enumerate() {
                assert!((a - b).abs() < 1e-5 * a.abs(), "{tokens} tokens, step {step}: {a} and {b}");
            }
        }
    }
}
