//! A model with a score head against transformers and PEFT: loss, gradients, ten updates, the exported folders.

use std::sync::Arc;

use plimsoll_cpu::CpuBackend;
use plimsoll_data::{Example, ExampleRef, NO_LOSS};
use plimsoll_graph::BackendTraits;
use plimsoll_models::{Lora, ParameterKind, Recipe, Targets};
use plimsoll_plan::{Budgets, DeviceProfile, Region, Step};
use plimsoll_runtime::{Active, Backend, RuntimeError};
use plimsoll_train::{
    AdapterFolder, DataMemory, Merge, Model, PackedUpdate, Prepared, Reward, SHARD_BYTES, Session, Spec, TrainError,
    bench, export, prepare,
};
use serde_json::Value as Json;

use crate::support::{THREADS, fixture, json, recipe, session, spec_for, start, tensors};

const FIXTURE: &str = "reward";
const SEQUENCES: usize = 6;
const MAX_LENGTH: usize = 24;

/// A reward model of a recipe.
fn scored(model: Model, recipe: Recipe, sequences: usize, max_length: usize) -> Spec {
    spec_for(Arc::new(Reward::default()), model, recipe, sequences, max_length)
}

fn lora() -> Lora {
    let config = json(&fixture(FIXTURE).join("lora_init/adapter_config.json"));
    Lora {
        r: config["r"].as_u64().expect("r") as usize,
        alpha: config["lora_alpha"].as_f64().expect("alpha") as f32,
        dropout: 0.0,
        targets: Targets::AllLinear,
        rslora: false,
    }
}

fn scored_session(recipe: Recipe, change: impl Fn(&mut Spec)) -> Session {
    let adapted = recipe.lora.is_some();
    let mut session = session(FIXTURE, recipe, SEQUENCES, MAX_LENGTH, |spec| {
        spec.task = Arc::new(Reward::default());
        change(spec);
    });
    if adapted {
        session.load_adapters(&fixture(FIXTURE).join("lora_init")).expect("adapters");
    }
    session
}

/// Three pairs, chosen and rejected in turn.
fn examples() -> Vec<Example> {
    let batch = json(&fixture(FIXTURE).join("batch.json"));
    let side = |ids: &Json| {
        let ids = ids.as_array().expect("a list").iter();
        let tokens: Vec<u32> = ids.map(|t| t.as_u64().expect("a token") as u32).collect();
        Example { targets: vec![NO_LOSS; tokens.len()], tokens, ..Example::default() }
    };
    let pairs = batch["pairs"].as_array().expect("pairs");
    pairs.iter().flat_map(|pair| [side(&pair["chosen"]), side(&pair["rejected"])]).collect()
}

fn packed(session: &mut Session) -> PackedUpdate {
    let examples = examples();
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    session.pack(&views).expect("fits")
}

fn number(value: &Json) -> f64 {
    value.as_f64().expect("a number")
}

fn relative(found: f64, expected: f64) -> f64 {
    (found - expected).abs() / expected.abs()
}

fn check(kind: &str, mut session: Session) {
    let expected = json(&fixture(FIXTURE).join(format!("{kind}.json")));
    let losses: Vec<f64> = expected["losses"].as_array().expect("losses").iter().map(number).collect();
    let batches = packed(&mut session);
    let loss = session.accumulate(&batches, 1).expect("runs");
    assert!(relative(loss, losses[0]) < 1e-5, "{kind}: loss {loss} instead of {}", losses[0]);
    check_gradients(kind, &session);
    let norm = session.apply(1, 1e-3).expect("runs");
    assert!(relative(norm, number(&expected["grad_norm"])) < 1e-4, "{kind}: norm {norm}");
    for (index, &wanted) in losses.iter().enumerate().skip(1) {
        let step = index as u64 + 1;
        let found = session.update(&batches, step, 1e-3).expect("runs").loss;
        assert!(relative(found, wanted) < 1e-3, "{kind}, step {step}: {found} instead of {wanted}");
    }
    let last = session.accumulate(&batches, 11).expect("runs");
    let wanted = number(&expected["final_loss"]);
    assert!(relative(last, wanted) < 1e-3, "{kind}: in the end {last} instead of {wanted}");
}

fn check_gradients(kind: &str, session: &Session) {
    let expected = tensors(&fixture(FIXTURE).join(format!("{kind}_grads.safetensors")));
    let mut compared = 0;
    for parameter in session.parameters().iter().filter(|p| p.trainable) {
        let gradient = session.gradient(&parameter.name).expect("readable").expect("trained");
        let cols = parameter.shape.elements() / parameter.shape.rows();
        // Beside an adapter, PEFT names the head as part of the adapted model.
        let wrapped = kind == "lora" && parameter.kind == ParameterKind::Head;
        for part in &parameter.tensors {
            let name = if wrapped { format!("base_model.model.{}", part.name) } else { part.name.clone() };
            let found = &gradient[part.first_row * cols..][..part.shape.elements()];
            let wanted = &expected[&name];
            let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
            let size = norm(&mut wanted.iter().map(|&w| f64::from(w)));
            let off = norm(&mut found.iter().zip(wanted).map(|(&f, &w)| f64::from(f) - f64::from(w)));
            assert!(off <= 1e-4 * size, "{kind}: gradient of {name} is off by {:.1e}", off / size);
            compared += 1;
        }
    }
    assert_eq!(compared, expected.len(), "{kind}: every gradient of the reference is compared");
}

#[test]
fn full_training_follows_transformers() {
    check("full", scored_session(recipe(None), |_| {}));
}

#[test]
fn lora_follows_peft() {
    check("lora", scored_session(recipe(Some(lora())), |_| {}));
}

/// Whatever the micro-batch, as long as it holds a pair; accuracy and margin included.
#[test]
fn pairs_may_be_binned_in_any_way() {
    let expected = json(&fixture(FIXTURE).join("full.json"));
    for tokens in [2 * MAX_LENGTH, 2 * MAX_LENGTH + 7, 6 * MAX_LENGTH] {
        let mut session = scored_session(recipe(None), |s| s.pins.micro_batch_tokens = Some(tokens));
        let batches = packed(&mut session);
        let result = session.update(&batches, 1, 1e-3).expect("runs");
        assert!(relative(result.loss, number(&expected["loss"])) < 1e-5, "{tokens} tokens: {}", result.loss);
        let metric = |name: &str| result.metrics.get(name).expect("counted");
        assert!((metric("accuracy") - number(&expected["accuracy"])).abs() < 1e-12, "{tokens} tokens: {result:?}");
        assert!((metric("margin") - number(&expected["margin"])).abs() < 1e-5, "{tokens} tokens: {result:?}");
        assert_eq!(result.amounts.sequences, SEQUENCES as u64);
    }
}

fn bits(session: &mut Session) -> Vec<u32> {
    let slots: Vec<_> = session.parameters().iter().map(|p| (p.slot, p.shape.elements())).collect();
    let mut bits = Vec::new();
    for (slot, elements) in slots {
        let mut values = vec![0u32; elements];
        session.executor().read_slot(slot, &mut values).expect("readable");
        bits.extend(values);
    }
    bits
}

/// The same bits under other memory plans for one micro-batch size.
#[test]
fn the_plan_does_not_matter() {
    let with_dropout = Lora { dropout: 0.2, ..lora() };
    for recipe in [recipe(None), recipe(Some(with_dropout))] {
        let train = |classes: &[(&str, usize)]| {
            let recompute = classes.iter().map(|(c, k)| ((*c).to_owned(), *k)).collect();
            let mut session = scored_session(recipe.clone(), |s| {
                s.pins.micro_batch_tokens = Some(2 * MAX_LENGTH);
                s.pins.recompute = Some(std::collections::BTreeMap::clone(&recompute));
            });
            let batches = packed(&mut session);
            let losses: Vec<f64> =
                (1..=3).map(|step| session.update(&batches, step, 1e-3).expect("runs").loss).collect();
            (losses, bits(&mut session))
        };
        let kept = train(&[]);
        assert_eq!(kept, train(&[("gate_up", 2), ("attn_norm", 1)]));
        assert_eq!(kept, train(&[("rotated", 2), ("attn_out", 2), ("mlp_norm", 2), ("mlp_act", 2)]));
    }
}

/// Runs on the CPU, but only whole micro-batches, as a device does that records its schedules.
struct WholeShapes(CpuBackend);

impl Backend for WholeShapes {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn traits(&self) -> BackendTraits {
        self.0.traits()
    }
    fn allocate(&mut self, bytes: usize) -> Result<(), RuntimeError> {
        self.0.allocate(bytes)
    }
    fn run(&mut self, step: &Step, active: Active) -> Result<(), RuntimeError> {
        self.0.run(step, active)
    }
    fn fixed_shape(&self) -> bool {
        true
    }
    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), RuntimeError> {
        self.0.write(region, bytes)
    }
    fn read(&self, region: Region, bytes: &mut [u8]) -> Result<(), RuntimeError> {
        self.0.read(region, bytes)
    }
    fn host_bytes(&mut self, region: Region) -> Option<&mut [u8]> {
        self.0.host_bytes(region)
    }
}

/// What fills up a micro-batch is no pair.
#[test]
fn filling_up_does_not_count() {
    let expected = json(&fixture(FIXTURE).join("full.json"));
    let folder = fixture(FIXTURE).join("model");
    for tokens in [2 * MAX_LENGTH, 5 * MAX_LENGTH, 8 * MAX_LENGTH + 3] {
        let model = Model::find(folder.to_str().expect("UTF-8")).expect("a model folder");
        let mut spec = scored(model, recipe(None), SEQUENCES, MAX_LENGTH);
        spec.pins.micro_batch_tokens = Some(tokens);
        let device = DeviceProfile::cpu(THREADS, 8 << 30, 100e9, 50e9, 20e9);
        let budgets = Budgets { gpu_bytes: 0, host_bytes: 8 << 30 };
        let backend = Box::new(WholeShapes(CpuBackend::new(Some(THREADS))));
        let mut session = prepare(&spec, backend, &device, budgets, &DataMemory::none(), false).expect("fits").session;
        let batches = packed(&mut session);
        let result = session.update(&batches, 1, 1e-3).expect("runs");
        assert!(relative(result.loss, number(&expected["loss"])) < 1e-5, "{tokens} tokens: {}", result.loss);
        assert!(relative(result.grad_norm, number(&expected["grad_norm"])) < 1e-4, "{tokens} tokens");
        let accuracy = result.metrics.get("accuracy").expect("counted");
        assert!((accuracy - number(&expected["accuracy"])).abs() < 1e-12, "{tokens} tokens: {accuracy}");
    }
}

/// A model that was trained to speak has no score head; it gets one, and the rest is its own.
#[test]
fn a_language_model_gets_a_new_head() {
    let mut session =
        session("llama", recipe(None), SEQUENCES, MAX_LENGTH, |spec| spec.task = Arc::new(Reward::default()));
    let score = session.parameters().iter().find(|p| p.kind == ParameterKind::Head).expect("a head").clone();
    let mut drawn = vec![0f32; score.shape.elements()];
    session.executor().read_slot(score.slot, &mut drawn).expect("readable");
    let spread = (drawn.iter().map(|x| x * x).sum::<f32>() / drawn.len() as f32).sqrt();
    assert!((0.01..0.04).contains(&spread), "{spread}");
    assert!(session.parameters().iter().all(|p| p.tensors.iter().all(|tensor| !tensor.name.starts_with("lm_head"))));
    assert!(session.has_new_head());
    assert!(!scored_session(recipe(None), |_| {}).has_new_head());
    let refused = session.sample(&[vec![5, 6]], None, 3);
    assert!(matches!(refused, Err(TrainError::NoText)));
}

/// The head that was trained beside the adapters comes with them, and the one for words goes.
#[test]
fn a_merged_reward_model_scores_as_it_did_with_adapters() {
    let here = tempfile::tempdir().expect("a folder");
    let base = Model::find(&fixture("llama").join("model").display().to_string()).expect("a model");
    let mut adapted = start(&scored(base.clone(), recipe(Some(lora())), SEQUENCES, MAX_LENGTH), false).session;
    let batches = packed(&mut adapted);
    // Far enough that adapters and head have moved.
    for step in 1..4 {
        adapted.update(&batches, step, 1e-2).expect("runs");
    }
    let expected = adapted.accumulate(&batches, 4).expect("runs");
    let folder = here.path().join("adapter");
    export(&mut adapted, &folder, &[]).expect("writable");
    let adapter = AdapterFolder::open(&folder).expect("an adapter");
    let merge = Merge::open(&base, &adapter, Vec::new(), SHARD_BYTES).expect("they belong together");
    assert_eq!(merge.plan.replaced, 1, "{:?}", merge.plan);
    let merged = here.path().join("merged");
    merge.write(&merged, &mut |_, _| {}).expect("writable");
    let config = json(&merged.join("config.json"));
    assert_eq!(config["architectures"], serde_json::json!(["LlamaForSequenceClassification"]));
    assert_eq!(config["id2label"], serde_json::json!({"0": "LABEL_0"}));
    let names = tensors(&merged.join("model.safetensors"));
    assert!(names.contains_key("score.weight") && !names.contains_key("lm_head.weight"));
    let model = Model::find(&merged.display().to_string()).expect("a model");
    let mut session = start(&scored(model, recipe(None), SEQUENCES, MAX_LENGTH), false).session;
    assert!(!session.has_new_head());
    let batches = packed(&mut session);
    let loss = session.accumulate(&batches, 4).expect("runs");
    assert!(relative(loss, expected) < 1e-5, "loss {loss} instead of {expected}");
}

/// What is saved is what is loaded again: the whole model, or adapters with the head.
#[test]
fn exported_folders_come_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let step = |session: &mut Session| {
        let batches = packed(session);
        session.update(&batches, 1, 1e-2).expect("runs");
        session.accumulate(&batches, 2).expect("runs")
    };

    let mut trained = scored_session(recipe(None), |_| {});
    let loss = step(&mut trained);
    let full = folder.path().join("full");
    export(&mut trained, &full, &[]).expect("written");
    let config = json(&full.join("config.json"));
    assert_eq!(config["architectures"][0], "Qwen2ForSequenceClassification");
    assert_eq!((&config["id2label"]["0"], &config["pad_token_id"]), (&"LABEL_0".into(), &0.into()));
    let model = Model::find(full.to_str().expect("UTF-8")).expect("a model");
    let mut again = start(&scored(model, recipe(None), SEQUENCES, MAX_LENGTH), false).session;
    let batches = packed(&mut again);
    assert_eq!(again.accumulate(&batches, 2).expect("runs"), loss);

    let mut trained = scored_session(recipe(Some(lora())), |_| {});
    let loss = step(&mut trained);
    let adapter = folder.path().join("adapter");
    export(&mut trained, &adapter, &[]).expect("written");
    let config = json(&adapter.join("adapter_config.json"));
    assert_eq!((&config["task_type"], &config["modules_to_save"][0]), (&"SEQ_CLS".into(), &"score".into()));
    assert!(tensors(&adapter.join("adapter_model.safetensors")).contains_key("base_model.model.score.weight"));
    let mut again = scored_session(recipe(Some(lora())), |_| {});
    again.load_adapters(&adapter).expect("adapters");
    let batches = packed(&mut again);
    assert_eq!(again.accumulate(&batches, 2).expect("runs"), loss);
}

#[test]
fn bench_makes_pairs() {
    let shape = serde_json::json!({
        "model_type": "mistral", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 61,
    });
    let model = Model::from_shape(shape).expect("valid");
    let mut prepared: Prepared = start(&scored(model, recipe(Some(lora())), 8, 16), false);
    let report = bench(&mut prepared, 8, 2, 1e-3, std::time::Instant::now(), &mut |_, _| {}).expect("runs");
    assert!((report.loss_first - std::f64::consts::LN_2).abs() < 0.2, "{report:?}");
    assert_eq!(report.micro_batch_tokens % 32, 0, "{report:?}");
}
