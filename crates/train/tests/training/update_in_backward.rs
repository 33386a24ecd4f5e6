//! Updates inside the backward pass: the bits of separate ones, without all gradients at once.

use plimsoll_data::{Example, ExampleRef};
use plimsoll_graph::{OPTIMIZERS, Role, ScheduleId};
use plimsoll_models::{Lora, Recipe, Targets};
use plimsoll_plan::{Categories, KeepPin, Report};
use plimsoll_train::{Bad, Model, Prepared, Session, Spec, TrainError};
use serde_json::{Value as Json, json};

use crate::support::{on_cuda, recipe, spec, start, trained_by};

const SEQUENCES: usize = 4;
const MAX_LENGTH: usize = 16;
const UPDATES: u64 = 4;

fn llama() -> Json {
    json!({
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 48, "vocab_size": 64,
    })
}

/// The gradient of its embedding is complete last, although its head begins it.
fn tied() -> Json {
    json!({
        "model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48, "vocab_size": 64, "tie_word_embeddings": true,
    })
}

fn unclipped(recipe: Recipe) -> Recipe {
    Recipe { clip: None, ..recipe }
}

fn asked(shape: Json, recipe: Recipe, in_backward: bool) -> Spec {
    let model = Model::from_shape(shape).expect("valid");
    let mut spec = spec(model, unclipped(recipe), SEQUENCES, MAX_LENGTH);
    spec.pins.micro_batch_tokens = Some(SEQUENCES * MAX_LENGTH);
    spec.pins.update_in_backward = Some(in_backward);
    spec
}

fn examples(salt: usize) -> Vec<Example> {
    let tokens = |i: usize| (0..=MAX_LENGTH).map(|t| ((t + 1) * (i + 3) + salt) as u32 % 64).collect::<Vec<u32>>();
    let example = |tokens: Vec<u32>| Example {
        targets: tokens[1..].iter().map(|&t| t as i32).collect(),
        tokens: tokens[..MAX_LENGTH].to_vec(),
        ..Example::default()
    };
    (0..SEQUENCES).map(|i| example(tokens(i))).collect()
}

/// Losses and norms of some updates, and every byte that they leave in weights and states.
fn trained(mut session: Session) -> (Vec<[u64; 2]>, Vec<u8>) {
    let mut course = Vec::new();
    for step in 1..=UPDATES {
        let examples = examples(step as usize);
        let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
        let update = session.pack(&views).expect("fits");
        let result = session.update(&update, step, 1e-2).expect("a good update");
        course.push([result.loss.to_bits(), result.grad_norm.to_bits()]);
    }
    (course, kept(&mut session))
}

fn kept(session: &mut Session) -> Vec<u8> {
    let slots = session.executor().plan().slots.iter();
    let lasting = [Role::Weight, Role::Adapter, Role::OptimizerState];
    let lasting: Vec<_> =
        slots.filter(|(_, slot)| lasting.contains(&slot.role)).map(|(id, s)| (id, s.bytes())).collect();
    let mut all = Vec::new();
    for (slot, bytes) in lasting {
        let from = all.len();
        all.resize(from + bytes, 0);
        session.executor().read_slot(slot, &mut all[from..]).expect("readable");
    }
    all
}

fn memory(report: &Report) -> &Categories {
    report.host.categories.arena.as_ref().unwrap_or(&report.gpu.categories)
}

#[track_caller]
fn check(name: &str, shape: &Json, recipe: &Recipe, change: fn(&mut Spec)) {
    let run = |in_backward: bool| -> Prepared {
        let mut spec = asked(shape.clone(), recipe.clone(), in_backward);
        change(&mut spec);
        start(&spec, in_backward && !on_cuda())
    };
    let (behind, inside) = (run(false), run(true));
    assert!(inside.report.update_in_backward && !behind.report.update_in_backward);
    assert!(!inside.session.updates_in_backward() || inside.report.accumulation == 1);
    let (behind, inside) = (trained(behind.session), trained(inside.session));
    assert_eq!(behind.0, inside.0, "{name}: losses and norms");
    assert!(behind.1 == inside.1, "{name}: weights and states");
}

#[test]
fn updates_in_the_backward_pass_have_the_same_bits() {
    for &(optimizer, _) in OPTIMIZERS {
        check(optimizer, &llama(), &Recipe { groups: trained_by(optimizer), ..recipe(None) }, |_| {});
    }
    check("tied", &tied(), &recipe(None), |_| {});
    let freeze = vec!["model.layers.1.*".to_owned(), "model.embed_tokens.*".to_owned()];
    check("frozen parts", &llama(), &Recipe { freeze, ..recipe(None) }, |_| {});
    let lora = Lora { r: 4, alpha: 8.0, dropout: 0.2, targets: Targets::AllLinear, rslora: false };
    check("adapters", &llama(), &recipe(Some(lora.clone())), |_| {});
    check("adapters from rounded values", &llama(), &recipe(Some(lora)), |spec| spec.pins.keep = KeepPin::Rounded);
    // Values that are rebuilt from weights must be so before those are updated.
    check("everything rebuilt", &llama(), &recipe(None), |spec| {
        let classes = ["attn_norm", "attn_out", "gate_up", "mlp_act", "mlp_norm", "residual_mid", "rotated"];
        spec.pins.recompute = Some(classes.iter().map(|&class| (class.to_owned(), 3)).collect());
    });
}

/// Gradients are the only thing there is less of, and there is hardly any at once.
#[test]
fn the_plan_has_no_room_for_all_gradients() {
    let mut wide = llama();
    wide["num_hidden_layers"] = json!(8);
    let report = |in_backward| start(&asked(wide.clone(), recipe(None), in_backward), false).report;
    let (behind, inside) = (report(false), report(true));
    let (all, some) = (memory(&behind).gradients, memory(&inside).gradients);
    assert!(some < all / 4, "{some} of {all} bytes");
    let saved = behind.layout.arena_bytes - inside.layout.arena_bytes;
    assert!(saved as f64 > 0.75 * all as f64, "{saved} saved of {all}");
    assert_eq!(memory(&behind).weights, memory(&inside).weights);
}

/// An update that turns out bad has gone halfway: it is said, and parameters whose gradients were bad are as they were.
#[test]
fn a_bad_update_is_not_taken_for_a_good_state() {
    let mut session = start(&asked(llama(), recipe(None), true), false).session;
    let examples = examples(0);
    let views: Vec<ExampleRef> = examples.iter().map(Example::view).collect();
    let update = session.pack(&views).expect("fits");
    session.update(&update, 1, 1e-2).expect("a good update");
    // Any token's embedding: everything behind it is no number.
    let weight = session.parameters()[0].slot;
    session.executor().write_slot(weight, &[f32::NAN; 64 * 32]).expect("writable");
    let before = kept(&mut session);
    let stopped = session.update(&update, 2, 1e-2).expect_err("is bad");
    assert!(matches!(stopped, TrainError::HalfApplied { step: 2, bad: Bad::Loss { .. } }), "{stopped}");
    let differs = before.iter().zip(kept(&mut session)).filter(|(a, b)| **a != *b).count();
    assert!(differs <= 16, "only the norm was written, {differs} bytes differ");
    assert!(!session.executor().plan().schedules.contains_key(&ScheduleId::UPDATE));
}

/// What it cannot do is refused by name.
#[test]
fn what_stands_against_it_is_said() {
    let refused = |change: fn(&mut Spec)| {
        let mut spec = asked(llama(), recipe(None), true);
        change(&mut spec);
        let (_, device) = crate::support::device();
        let budgets = plimsoll_plan::Budgets { gpu_bytes: 8 << 30, host_bytes: 8 << 30 };
        let fixed = plimsoll_plan::Fixed { gpu_context_bytes: 0, host_process_bytes: 0, host_data_bytes: 0 };
        plimsoll_train::plan_only(&spec, &device, budgets, fixed).expect_err("refused").to_string()
    };
    assert!(refused(|spec| spec.recipe.clip = Some(1.0)).contains("clip: none"));
    assert!(refused(|spec| spec.recipe.scaled_loss = true).contains("fp16"));
    assert!(refused(|spec| spec.tokens = Some(64)).contains("batch.tokens"));
    assert!(refused(|spec| spec.pins.micro_batch_tokens = Some(MAX_LENGTH)).contains("several micro-batches"));
}
