//! What only adapters' gradients need is kept rounded where that is allowed and makes a better plan.

mod decoders;

use std::collections::BTreeMap;

use decoders::Vocabulary;
use plimsoll_graph::{BackendTraits, BatchShape, DType, Graph, Phase, Program, ScheduleId, StreamShape, Streams};
use plimsoll_models::{Architecture, Built, Lora, Recipe, Targets, build, preset};
use plimsoll_plan::recompute::{Drops, droppable, recompute};
use plimsoll_plan::verify::verify;
use plimsoll_plan::{
    Budgets, Chosen, DeviceProfile, Fixed, Goal, KeepPin, Pins, PlanError, Request, Variant, assemble, known_device,
    plan,
};
use serde_json::json;

const GIB: u64 = 1 << 30;

fn lora() -> Recipe {
    let lora = Lora { r: 16, alpha: 32.0, dropout: 0.0, targets: Targets::AllLinear, rslora: false };
    Recipe { lora: Some(lora), compute: DType::BF16, master: true, ..decoders::full() }
}

/// Of Mistral-7B, four sequences of 2,048 tokens in an update.
fn planned(device: &DeviceProfile, gib: u64, pins: Pins) -> Result<Chosen<Built>, PlanError> {
    let config = preset("mistral-7b").expect("a preset").expect("valid");
    let build = |v: Variant| {
        let recipe = Recipe { keep_fp8: v.keep_fp8, ..lora() };
        Ok(build(&config, &Vocabulary, &recipe, v.batch, v.chunks).expect("a valid program"))
    };
    plan(&Request {
        build: &build,
        sequences: 4,
        tokens: None,
        group: 1,
        max_length: Streams::one(2048),
        chunked_loss: true,
        update_in_backward: Err("gradients are clipped".to_owned()),
        device,
        budgets: Budgets { gpu_bytes: gib * GIB, host_bytes: 16 * GIB },
        fixed: Fixed { gpu_context_bytes: device.context_bytes, host_process_bytes: 512 << 20, host_data_bytes: 0 },
        goal: Goal::Fastest,
        pins,
    })
}

/// Nothing is to be rebuilt.
fn without_recompute(keep: KeepPin) -> Pins {
    Pins { keep, recompute: Some(BTreeMap::new()), ..Pins::default() }
}

#[test]
fn it_is_chosen_where_it_makes_a_plan_fit() {
    let device = known_device("H200").expect("in the table");
    assert!(matches!(planned(&device, 23, without_recompute(KeepPin::Exact)), Err(PlanError::DoesNotFit { .. })));
    let report = planned(&device, 23, without_recompute(KeepPin::RoundedIfBetter)).expect("fits").report;
    let kept = [("attn_norm", 32), ("mlp_act", 32), ("mlp_norm", 32)].map(|(class, k)| (class.to_owned(), k));
    assert_eq!(report.keep, BTreeMap::from(kept));
    assert!(report.recompute.is_empty() && report.gpu.planned_bytes <= 23 * GIB);
}

/// A larger micro-batch fits by it.
#[test]
fn it_is_chosen_where_it_makes_a_plan_faster() {
    let device = known_device("H200").expect("in the table");
    let report = |keep| planned(&device, 30, without_recompute(keep)).expect("fits").report;
    let (exact, rounded) = (report(KeepPin::Exact), report(KeepPin::RoundedIfBetter));
    assert!(exact.keep.is_empty() && !rounded.keep.is_empty());
    assert_eq!((exact.micro_batch_tokens, rounded.micro_batch_tokens), (2048, 4096));
    assert!(rounded.predicted.tokens_per_s > 1.01 * exact.predicted.tokens_per_s);
}

/// Norms and activations are rebuilt in less time than rounding and widening take, and all of their memory is free then.
#[test]
fn it_is_left_where_rebuilding_costs_less() {
    let device = known_device("H200").expect("in the table");
    for gib in [18, 22, 28, 80] {
        let report = |keep| planned(&device, gib, Pins { keep, ..Pins::default() }).expect("fits").report;
        let (exact, allowed) = (report(KeepPin::Exact), report(KeepPin::RoundedIfBetter));
        assert!(allowed.keep.is_empty(), "{gib} GiB: {:?}", allowed.keep);
        assert_eq!((exact.layout, exact.recompute), (allowed.layout, allowed.recompute), "{gib} GiB");
    }
}

/// Half the bytes of each value, and of the scales four for each row.
#[test]
fn rounding_halves_what_is_kept() {
    let device = known_device("H200").expect("in the table");
    let activations = |keep| {
        let pins = Pins { micro_batch_tokens: Some(2048), loss_chunks: Some(1), ..without_recompute(keep) };
        planned(&device, 80, pins).expect("fits").report.gpu.categories.activations
    };
    let freed = activations(KeepPin::Exact) - activations(KeepPin::Rounded);
    let rows = 32 * 2048u64;
    let expected = rows * (4096 + 4096 + 14_336) - rows * 3 * 4;
    // At the peak, one value is there in both forms.
    assert!(freed <= expected && freed + 2048 * 3 * 14_336 > expected, "{freed} bytes of {expected}");
}

fn t5() -> Architecture {
    let config = json!({
        "model_type": "t5", "d_model": 64, "d_kv": 16, "num_heads": 4, "d_ff": 96, "num_layers": 2,
        "num_decoder_layers": 3, "vocab_size": 128, "feed_forward_proj": "gated-gelu",
    });
    Architecture::from_value(config).expect("valid")
}

fn program(model: &Architecture, keep_fp8: bool) -> Program {
    let stream = StreamShape { tokens: 256, sequences: 8, max_length: 64 };
    let batch = BatchShape { streams: Streams::new(&vec![stream; model.streams()]) };
    let recipe = Recipe { keep_fp8, ..lora() };
    build(model, &Vocabulary, &recipe, batch, plimsoll_graph::Chunks { loss: 1, mlp: 2 }).expect("valid").program
}

/// Of each class, how many values are rounded in the forward pass.
fn rounded(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Forward) {
        for &output in &node.outputs {
            let value = graph.value(output);
            if value.storage.blocks.is_some() {
                *counts.entry(value.class.0).or_default() += 1;
            }
        }
    }
    counts
}

/// Models of every make, whatever is dropped beside it: classes are as they were, and plans are sound.
#[test]
fn models_of_every_make_are_kept_rounded() {
    // In two chunks, an MLP has two activations and two parts of what it reads.
    let decoder = BTreeMap::from([("attn_norm", 4), ("mlp_act", 8), ("mlp_norm", 8)]);
    let with_encoder =
        BTreeMap::from([("attn_norm", 5), ("cross_norm", 3), ("mlp_act", 10), ("mlp_norm", 10), ("", 1)]);
    let models = [
        ("llama", decoders::config("llama", 16), decoder.clone()),
        ("qwen3", decoders::config("qwen3", 16), decoder.clone()),
        ("nanochat", decoders::config("nanochat", 16), decoder),
        ("t5", t5(), with_encoder),
    ];
    for (name, model, expected) in models {
        let (exact, kept) = (program(&model, false), program(&model, true));
        let (exact, micro_step) = (exact.graph(ScheduleId::MICRO_STEP), kept.graph(ScheduleId::MICRO_STEP));
        assert!(rounded(exact).is_empty());
        assert_eq!(rounded(micro_step), expected, "{name}");
        let classes = droppable(exact);
        assert_eq!(classes, droppable(micro_step), "{name}");
        let all: Vec<_> = classes.iter().map(|(class, layers)| (*class, layers.len())).collect();
        let few: Vec<_> = all.iter().map(|&(class, layers)| (class, layers / 2)).collect();
        for drops in [Vec::new(), few, all] {
            let graph = recompute(micro_step, &Drops::of(drops));
            let plan = assemble(&decoders::with_micro_step(&kept, graph), &BackendTraits::gpu());
            verify(&plan).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
