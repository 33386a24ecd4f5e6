//! Caches of generated sequences: in the memory of whatever else the program does, and nobody's while they are in use.

mod decoders;

use decoders::Vocabulary;
use plimsoll_graph::{BackendTraits, BatchShape, Chunks, Program, Role, ScheduleId, StreamShape, Streams};
use plimsoll_models::{Architecture, Purpose, Recipe, build, build_inference, preset};
use plimsoll_plan::verify::verify;
use plimsoll_plan::{Plan, Region, Schedule, assemble};

const BATCH: BatchShape =
    BatchShape { streams: plimsoll_graph::Streams::one(StreamShape { tokens: 1024, sequences: 8, max_length: 256 }) };

fn assembled(program: &Program) -> Plan {
    let plan = assemble(program, &BackendTraits::gpu());
    verify(&plan).expect("a sound plan");
    plan
}

fn caches(plan: &Plan) -> Vec<Region> {
    plan.slots.iter().filter(|(_, slot)| slot.role == Role::Cache).map(|(id, _)| plan.slot(id)).collect()
}

/// Whether a schedule works in the memory of a cache without meaning it.
fn works_in(schedule: &Schedule, caches: &[Region]) -> bool {
    let own = |step: &plimsoll_plan::Step| -> Vec<Region> {
        let buffers = step.outputs.iter().filter(|buffer| buffer.slot.is_none());
        buffers.map(|buffer| buffer.region).chain(step.workspace).collect()
    };
    schedule.steps.iter().flat_map(own).any(|region| caches.iter().any(|cache| cache.overlaps(&region)))
}

#[test]
fn training_uses_the_memory_of_caches() {
    let model = preset("qwen3-0.6b").expect("a preset").expect("valid");
    let built = build(&model, &Vocabulary, &decoders::full(), BATCH, Chunks::loss(1)).expect("a valid program");
    let plan = assembled(&built.program);
    let caches = caches(&plan);
    assert_eq!(caches.len(), 28);
    for (&id, schedule) in &plan.schedules {
        let generates = [ScheduleId::PREFILL, ScheduleId::DECODE].contains(&id);
        // An update may need too little to reach them.
        assert!(generates != works_in(schedule, &caches) || id == ScheduleId::UPDATE, "{id:?}");
    }
    // Without caches the program takes as much.
    let mut bare = built.program.clone();
    bare.schedules.retain(|id, _| ![ScheduleId::PREFILL, ScheduleId::DECODE].contains(id));
    let slots: usize = caches.iter().map(|region| region.bytes).sum();
    assert!(slots > 16 << 20 && plan.arena_bytes == assembled(&bare).arena_bytes, "{slots} bytes of caches");
    assert_eq!(plan.categories.cache, 0, "at its fullest the arena holds none");
}

#[test]
fn generating_keeps_off_the_caches() {
    let model = preset("qwen3-0.6b").expect("a preset").expect("valid");
    let recipe = Recipe::forward_only(None, decoders::full().compute);
    let built = build_inference(&model, &Vocabulary, &recipe, BATCH, Purpose::Generate).expect("a valid program");
    let mut plan = assembled(&built.program);
    let caches = caches(&plan);
    assert_eq!(plan.categories.cache, caches.iter().map(|region| region.bytes as u64).sum::<u64>());
    // The first step's result in the last layer's cache.
    let step = &mut plan.schedules.get_mut(&ScheduleId::DECODE).expect("generates").steps[0];
    let into = Region { offset: caches[caches.len() - 1].offset, ..step.outputs[0].region };
    step.outputs[0].region = into;
    let violation = verify(&plan).expect_err("the cache is overwritten");
    assert_eq!(violation.schedule, ScheduleId::DECODE.0);
}

/// Of a decoder behind an encoder, each layer keeps two: what it wrote itself, and what it was given to read.
#[test]
fn sources_have_caches_of_their_own() {
    let config = serde_json::json!({
        "model_type": "t5", "d_model": 256, "d_kv": 32, "num_heads": 8, "d_ff": 512, "num_layers": 3,
        "num_decoder_layers": 4, "vocab_size": 2000, "decoder_start_token_id": 0,
    });
    let model = Architecture::from_value(config).expect("valid");
    let stream = |max_length| StreamShape { tokens: 8 * max_length, sequences: 16, max_length };
    let batch = BatchShape { streams: Streams::new(&[stream(64), stream(128)]) };
    let built = build(&model, &Vocabulary, &decoders::full(), batch, Chunks::loss(1)).expect("a valid program");
    let plan = assembled(&built.program);
    let caches = caches(&plan);
    let bytes: usize = caches.iter().map(|region| region.bytes).sum();
    let row_bytes = 2 * 256 * decoders::full().compute.bytes();
    assert_eq!((caches.len(), bytes), (8, 4 * 8 * (64 + 128) * row_bytes));
    for (&id, schedule) in &plan.schedules {
        match id {
            ScheduleId::MICRO_STEP => assert!(works_in(schedule, &caches)),
            ScheduleId::PREFILL | ScheduleId::DECODE => assert!(!works_in(schedule, &caches), "{id:?}"),
            _ => {}
        }
    }
    // What an encoder read is only read from then on.
    let written = |id| {
        let outputs = plan.schedule(id).steps.iter().flat_map(|step| &step.outputs);
        outputs.filter(|buffer| buffer.slot.is_some_and(|slot| plan.slots.get(slot).role == Role::Cache)).count()
    };
    assert_eq!([ScheduleId::PREFILL, ScheduleId::DECODE].map(written), [8, 4]);
}
