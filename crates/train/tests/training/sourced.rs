//! Models with an encoder: the same bits whatever the plan, frozen parts, exported folders, and what does not suit them.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_data::{Example, ExampleRef};
use plimsoll_models::{Architecture, Lora, Recipe, Targets};
use plimsoll_plan::{Budgets, Fixed, Goal, KeepPin, known_device};
use plimsoll_train::{Language, Model, Seq2Seq, Session, Spec, TrainError, bench, export, plan_only};
use serde_json::json;

use crate::same_bits::train_on;
use crate::support::{json, recipe, spec_for, start};

const SEQUENCES: usize = 6;
const MAX_LENGTH: usize = 40;
const VOCABULARY: usize = 131;

fn model(dropout: f64) -> Model {
    let config = json!({
        "model_type": "t5", "d_model": 48, "d_kv": 12, "num_heads": 4, "d_ff": 80, "num_layers": 2,
        "num_decoder_layers": 3, "vocab_size": VOCABULARY, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16, "feed_forward_proj": "gated-gelu", "dropout_rate": dropout,
    });
    Model::from_shape(config).expect("valid")
}

/// Targets and sources of different lengths, so that micro-batches are partly filled in both streams.
fn examples() -> Vec<Example> {
    let mut state = 54_321u32;
    let mut draw = |length: usize| -> Vec<u32> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % VOCABULARY as u32
        };
        (0..length).map(|_| next()).collect()
    };
    (0..SEQUENCES)
        .map(|i| {
            let (target, source) = (draw(8 + 6 * i), draw(MAX_LENGTH - 7 * i));
            let targets = target[1..].iter().map(|&t| t as i32).collect();
            Example { tokens: target[..target.len() - 1].to_vec(), targets, source, ..Example::default() }
        })
        .collect()
}

fn sourced(model: Model, recipe: Recipe) -> Spec {
    let mut spec = spec_for(Arc::new(Seq2Seq::new(0)), model, recipe, SEQUENCES, MAX_LENGTH);
    spec.pins.micro_batch_tokens = Some(3 * MAX_LENGTH);
    spec.pins.loss_chunks = Some(2);
    spec
}

fn accumulated(session: &mut Session) -> f64 {
    let examples = examples();
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    let update = session.pack(&views).expect("fits");
    session.accumulate(&update, 1).expect("runs")
}

fn lora(targets: Targets) -> Lora {
    Lora { r: 4, alpha: 8.0, dropout: 0.2, targets, rslora: false }
}

#[test]
fn plans_do_not_show_in_the_bits() {
    let dropping = |classes: &[&str], layers| -> BTreeMap<String, usize> {
        // Only the decoder's three blocks attend to the source.
        let most = |class: &str| if class.contains("cross") { 3 } else { 5 };
        classes.iter().map(|class| ((*class).to_owned(), most(class).min(layers))).collect()
    };
    let classes = [
        "attn_norm",
        "qkv",
        "attn_out",
        "residual_cross",
        "cross_norm",
        "cross_q",
        "cross_kv",
        "cross_out",
        "residual_mid",
        "mlp_norm",
        "gate_up",
        "mlp_act",
    ];
    let plans = [
        ("keep everything", Some(dropping(&[], 0)), Goal::Fastest, false),
        ("keep everything, paranoid", Some(dropping(&[], 0)), Goal::Fastest, true),
        ("norms in two layers", Some(dropping(&["attn_norm", "cross_norm", "mlp_norm"], 2)), Goal::Fastest, false),
        ("cross attention", Some(dropping(&["cross_q", "cross_kv", "cross_out"], 3)), Goal::Fastest, true),
        ("everything", Some(dropping(&classes, 5)), Goal::Fastest, false),
        ("lowest", None, Goal::Lowest, true),
    ];
    // Both stacks' rows are divided into chunks of as many.
    let adapters = || recipe(Some(lora(Targets::AllLinear)));
    for (recipe, mlp_chunks, keep) in [
        (recipe(None), 1, KeepPin::Exact),
        (adapters(), 1, KeepPin::Exact),
        (adapters(), 3, KeepPin::Exact),
        (adapters(), 1, KeepPin::Rounded),
    ] {
        let mut results = Vec::new();
        for (name, classes, goal, paranoid) in plans.clone() {
            let mut spec = sourced(model(0.1), recipe.clone());
            (spec.pins.recompute, spec.pins.mlp_chunks, spec.goal) = (classes, Some(mlp_chunks), goal);
            spec.pins.keep = keep;
            results.push((name, train_on(&examples(), &spec, paranoid)));
        }
        let first = &results[0].1;
        assert!(first.losses.windows(2).all(|pair| pair[0] != pair[1]), "{:?}", first.losses);
        for (name, trained) in &results[1..] {
            assert_eq!(first.losses, trained.losses, "{name}: losses");
            assert_eq!(first.weights, trained.weights, "{name}: weights");
        }
        let mut sizes: Vec<u64> = results.iter().map(|(_, trained)| trained.arena_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        assert!(sizes.len() >= 4, "the plans really differ: {sizes:?}");
    }
}

/// Other micro-batches sum in another order: equal within rounding, dropout included.
#[test]
fn micro_batches_change_nothing_but_rounding() {
    let losses = |tokens: usize| {
        let mut spec = sourced(model(0.1), recipe(None));
        spec.pins.micro_batch_tokens = Some(tokens);
        train_on(&examples(), &spec, false).losses
    };
    let reference = losses(MAX_LENGTH);
    for tokens in [2 * MAX_LENGTH, 6 * MAX_LENGTH] {
        for (step, (a, b)) in reference.iter().zip(losses(tokens)).enumerate() {
            assert!((a - b).abs() < 1e-5 * a.abs(), "{tokens} tokens, step {step}: {a} and {b}");
        }
    }
}

/// Dropout is for training: it changes the loss there, and evaluation has none.
#[test]
fn dropout_is_applied() {
    let loss = |dropout| accumulated(&mut start(&sourced(model(dropout), recipe(None)), false).session);
    assert_ne!(loss(0.0), loss(0.1));
    assert!((loss(0.0) - loss(0.1)).abs() < 0.5 * loss(0.0), "{} and {}", loss(0.0), loss(0.1));
}

#[test]
fn parts_are_frozen_by_pattern() {
    let freeze = vec!["shared*".to_owned(), "encoder*".to_owned()];
    let mut session = start(&sourced(model(0.0), Recipe { freeze, ..recipe(None) }), false).session;
    accumulated(&mut session);
    let names = |trainable: bool| -> Vec<String> {
        let parameters = session.parameters().iter().filter(|p| p.trainable == trainable);
        parameters.flat_map(|p| p.tensors.iter().map(|t| t.name.clone())).collect()
    };
    assert!(names(false).iter().all(|name| name.starts_with("shared") || name.starts_with("encoder")));
    assert!(names(true).iter().all(|name| name.starts_with("decoder")), "{:?}", names(true));
    for parameter in session.parameters().iter().filter(|p| p.trainable) {
        let gradient = session.gradient(&parameter.name).expect("readable").expect("trained");
        assert!(gradient.iter().any(|&g| g != 0.0), "{} learns", parameter.name);
    }
}

#[test]
fn adapters_stand_beside_named_layers() {
    let targets = Targets::Named(["q", "v", "wi_0", "wo"].map(str::to_owned).to_vec());
    let session = start(&sourced(model(0.0), recipe(Some(lora(targets)))), false).session;
    let adapters: Vec<&str> =
        session.parameters().iter().filter(|p| p.trainable).flat_map(|p| &p.tensors).map(|t| t.name.as_str()).collect();
    // Two matrices each; two attentions in a block of the decoder.
    assert_eq!(adapters.len(), 2 * (2 * 4 + 3 * 6), "{adapters:?}");
    let cross = "base_model.model.decoder.block.2.layer.1.EncDecAttention.v.lora_B.weight";
    assert!(adapters.contains(&cross), "{adapters:?}");
}

#[test]
fn exported_folders_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, flag) in [("tied", true), ("untied", false)] {
        let mut config = model(0.0).config.source;
        config["tie_word_embeddings"] = flag.into();
        config.as_object_mut().expect("keys").remove("scale_decoder_outputs");
        let shape = Model::from_shape(config).expect("valid");
        assert_eq!(shape.config.head.tied, flag);
        let mut trained = start(&sourced(shape, recipe(None)), false).session;
        let loss = accumulated(&mut trained);
        let path = folder.path().join(name);
        export(&mut trained, &path, &[]).expect("written");
        let written = json(&path.join("config.json"));
        assert_eq!(written["architectures"], json!(["T5ForConditionalGeneration"]));
        assert_eq!((&written["scale_decoder_outputs"], &written["torch_dtype"]), (&flag.into(), &"float32".into()));
        let again = Model::find(path.to_str().expect("UTF-8")).expect("a model");
        assert_eq!(again.config.head.tied, flag, "{name}");
        assert_eq!(accumulated(&mut start(&sourced(again, recipe(None)), false).session), loss, "{name}");
    }
}

#[test]
fn texts_begin_anew_behind_the_source() {
    let mut session = start(&sourced(model(0.0), recipe(None)), false).session;
    let prompts: Vec<Vec<u32>> = examples().into_iter().map(|example| example.source).collect();
    let answers = session.sample(&prompts, None, 5).expect("runs");
    assert!(answers.iter().all(|answer| answer.len() == 5), "{answers:?}");
    let alone: Vec<_> =
        prompts.iter().map(|p| session.sample(std::slice::from_ref(p), None, 5).expect("runs").remove(0)).collect();
    assert_eq!(answers, alone, "others beside a prompt do not change its answer");
}

#[test]
fn bench_makes_sources() {
    let mut prepared = start(&sourced(model(0.0), recipe(None)), false);
    let report = bench(&mut prepared, 6, 2, 1e-3, std::time::Instant::now(), &mut |_, _| {}).expect("runs");
    assert!(report.loss_first.is_finite() && report.loss_last != report.loss_first, "{report:?}");
}

#[test]
fn tasks_and_models_must_agree_about_the_source() {
    let without = spec_for(Arc::new(Language::sft()), model(0.0), recipe(None), SEQUENCES, MAX_LENGTH);
    let decoder = Architecture::from_value(json!({"model_type": "llama"})).expect("valid");
    let decoder = Model { config: decoder, ..model(0.0) };
    let needless = sourced(decoder, recipe(None));
    for (spec, has, other) in [(without, "has", "seq2seq"), (needless, "lacks", "sft")] {
        let device = known_device("H200").expect("in the table");
        let budgets = Budgets { gpu_bytes: 8 << 30, host_bytes: 8 << 30 };
        let fixed = Fixed { gpu_context_bytes: 0, host_process_bytes: 0, host_data_bytes: 0 };
        match plan_only(&spec, &device, budgets, fixed) {
            Err(error @ TrainError::Streams { .. }) => {
                assert!(error.to_string().contains(&format!("which {has} an encoder")), "{error}");
                assert_eq!(error.hints(), [format!("use `task: {other}`, or another model")]);
            }
            other => panic!("{:?}", other.map(|chosen| chosen.batch)),
        }
    }
}
