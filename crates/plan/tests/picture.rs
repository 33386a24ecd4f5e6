//! The picture shows exactly the memory of the plan it is of.

mod decoders;

use decoders::Vocabulary;
use plimsoll_graph::Streams;
use plimsoll_models::{Built, build};
use plimsoll_plan::{
    Budgets, Chosen, DeviceProfile, Fixed, Goal, Picture, Pins, PlanError, Request, Timeline, Variant, known_device,
    plan,
};
use std::collections::BTreeMap;

const GIB: u64 = 1 << 30;

fn planned(goal: Goal, device: &DeviceProfile) -> Chosen<Built> {
    let config = decoders::config("llama", 16);
    let recipe = decoders::lora();
    let build = |v: Variant| -> Result<Built, PlanError> {
        Ok(build(&config, &Vocabulary, &recipe, v.batch, v.chunks).expect("a valid program"))
    };
    let request = Request {
        build: &build,
        sequences: 4,
        tokens: None,
        group: 1,
        max_length: Streams::one(64),
        chunked_loss: true,
        update_in_backward: Err("gradients are clipped".to_owned()),
        device,
        budgets: Budgets { gpu_bytes: 8 * GIB, host_bytes: 8 * GIB },
        fixed: Fixed { gpu_context_bytes: 0, host_process_bytes: 0, host_data_bytes: 0 },
        goal,
        pins: Pins::default(),
    };
    plan(&request).expect("fits")
}

fn live_bytes(picture: &Picture, timeline: &Timeline, step: usize) -> u64 {
    let bands: u64 = picture.bands.iter().map(|band| band.bytes.next_multiple_of(256)).sum();
    let alive = timeline.buffers.iter().filter(|b| b.first <= step && step <= b.last);
    bands + alive.map(|b| b.bytes).sum::<u64>()
}

#[test]
fn nothing_overlaps_and_the_peak_is_the_plans() {
    let device = known_device("RTX 4090").expect("in the table");
    for goal in [Goal::Fastest, Goal::Lowest] {
        let chosen = planned(goal, &device);
        let picture = chosen.picture(&device);
        assert_eq!(picture.timelines[0].name, "micro-step");
        let bands_end = picture.bands.iter().map(|band| band.offset + band.bytes).max().expect("there are slots");
        for timeline in &picture.timelines {
            for (index, a) in timeline.buffers.iter().enumerate() {
                assert!(
                    a.offset >= bands_end && a.offset + a.bytes <= picture.arena_bytes,
                    "{} of {}",
                    a.name,
                    timeline.name
                );
                assert!(!a.name.is_empty() && a.last < timeline.steps.len());
                for b in &timeline.buffers[index + 1..] {
                    let together = a.first <= b.last && b.first <= a.last;
                    let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                    assert!(!together || apart, "{} and {} share bytes", a.name, b.name);
                }
            }
            assert_eq!(live_bytes(&picture, timeline, timeline.peak_step), timeline.peak_bytes);
            let highest = (0..timeline.steps.len()).map(|step| live_bytes(&picture, timeline, step)).max();
            assert_eq!(highest, Some(timeline.peak_bytes), "{}", timeline.name);
        }
        let peak = picture.timelines.iter().map(|timeline| timeline.peak_bytes).max();
        assert_eq!(peak, Some(picture.lower_bound_bytes));
    }
}

/// The categories at the peak are those of the report.
#[test]
fn categories_are_the_reports() {
    let device = known_device("RTX 4090").expect("in the table");
    let chosen = planned(Goal::Fastest, &device);
    let picture = chosen.picture(&device);
    let fullest = picture.timelines.iter().max_by_key(|timeline| timeline.peak_bytes).expect("there are schedules");
    let mut found: BTreeMap<&str, u64> = BTreeMap::new();
    for band in &picture.bands {
        *found.entry(band.category).or_default() += band.bytes.next_multiple_of(256);
    }
    for b in fullest.buffers.iter().filter(|b| b.first <= fullest.peak_step && fullest.peak_step <= b.last) {
        *found.entry(b.category).or_default() += b.bytes;
    }
    let categories = chosen.plan.categories;
    for (name, bytes) in categories.rows().into_iter().filter(|(name, _)| *name != "fragmentation") {
        assert_eq!(found.get(name).copied().unwrap_or(0), bytes, "{name}");
    }
}

#[test]
fn what_is_recomputed_is_marked() {
    let device = known_device("RTX 4090").expect("in the table");
    let recomputed = |goal| {
        let picture = planned(goal, &device).picture(&device);
        picture.timelines[0].buffers.iter().filter(|b| b.recomputed).count()
    };
    assert_eq!(recomputed(Goal::Fastest), 0);
    assert!(recomputed(Goal::Lowest) > 0);
}
