//! Caches of generated sequences: in the memory of whatever else the program does, and nobody's while they are in use.

mod decoders;

use decoders::Vocabulary;
use plimsoll_graph::{BackendTraits, BatchShape, Program, Role, ScheduleId, StreamShape};
use plimsoll_models::{Purpose, Recipe, build, build_inference, preset};
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
    let built = build(&model, &Vocabulary, &decoders::full(), BATCH, 1).expect("a valid program");
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
