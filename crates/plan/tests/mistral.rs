//! Plans for a well-known model on cards of several sizes, without any of them.

mod decoders;

use decoders::{Score, Vocabulary};
use plimsoll_graph::{DType, Streams};
use plimsoll_models::{Architecture, Built, Head, Lora, Recipe, Targets, build, preset};
use plimsoll_plan::{
    Budgets, Chosen, DeviceProfile, Fixed, Goal, Pins, PlanError, Request, Variant, known_device, plan,
};

const GIB: u64 = 1 << 30;

fn lora() -> Recipe {
    let lora = Lora { r: 16, alpha: 32.0, dropout: 0.1, targets: Targets::AllLinear, rslora: false };
    Recipe { lora: Some(lora), compute: DType::BF16, master: true, ..decoders::full() }
}

fn plan_for(
    config: &Architecture,
    device: &DeviceProfile,
    gpu_bytes: u64,
    goal: Goal,
) -> Result<Chosen<Built>, PlanError> {
    plan_head(&Vocabulary, config, device, gpu_bytes, goal)
}

fn plan_head(
    head: &dyn Head,
    config: &Architecture,
    device: &DeviceProfile,
    gpu_bytes: u64,
    goal: Goal,
) -> Result<Chosen<Built>, PlanError> {
    let recipe = lora();
    let build = |v: Variant| Ok(build(config, head, &recipe, v.batch, v.chunks).expect("a valid program"));
    plan(&Request {
        build: &build,
        sequences: 8,
        tokens: None,
        group: decoders::group(head),
        max_length: Streams::one(512),
        chunked_loss: head.uses_vocabulary(),
        update_in_backward: Err("gradients are clipped".to_owned()),
        device,
        budgets: Budgets { gpu_bytes, host_bytes: 16 * GIB },
        fixed: Fixed { gpu_context_bytes: device.context_bytes, host_process_bytes: 512 << 20, host_data_bytes: 0 },
        goal,
        pins: Pins::default(),
    })
}

#[test]
fn mistral_lora_on_24_and_80_gib() {
    let config = preset("mistral-7b").expect("a preset").expect("valid");
    let device = known_device("RTX 4090").expect("in the table");
    let mut speeds = Vec::new();
    for gib in [24, 80] {
        let chosen = plan_for(&config, &device, gib * GIB, Goal::Fastest).expect("fits");
        let report = &chosen.report;
        let layout = &report.layout;
        assert!(report.gpu.planned_bytes <= gib * GIB);
        assert_eq!(report.gpu.planned_bytes, report.gpu.categories.total());
        assert!(layout.arena_bytes as f64 <= 1.01 * layout.lower_bound_bytes as f64, "{layout:?}");
        assert_eq!(report.accumulation * report.micro_batch_tokens, 8 * 512, "the effective batch is the user's");
        assert!(report.gpu.categories.weights > 13 * GIB);
        speeds.push(report.predicted.tokens_per_s);
    }
    assert!(speeds[1] >= speeds[0], "more memory is never slower: {speeds:?}");
}

/// The same model with a score head: no logits, no vocabulary projection, pairs in every micro-batch.
#[test]
fn mistral_reward_on_an_a100() {
    let config = preset("mistral-7b").expect("a preset").expect("valid");
    let device = known_device("A100 80GB").expect("in the table");
    for (gib, goal) in [(80, Goal::Fastest), (24, Goal::Fastest), (16, Goal::Fastest), (80, Goal::Lowest)] {
        let chosen = plan_head(&Score, &config, &device, gib * GIB, goal).expect("fits");
        let report = &chosen.report;
        assert!(report.gpu.planned_bytes <= gib * GIB);
        assert!(report.gpu.categories.loss < 64 << 20, "{:?}", report.gpu.categories);
        assert_eq!(report.micro_batch_tokens % 1024, 0);
        assert_eq!(report.accumulation * report.micro_batch_tokens, 8 * 512);
        // Without the vocabulary projection of 32,000 rows.
        assert!(report.gpu.categories.weights < 2 * (7_241_732_096 - 4096 * 31_999));
    }
}

#[test]
fn a_card_that_is_too_small_is_told_the_smallest_budget() {
    let config = preset("mistral-7b").expect("a preset").expect("valid");
    let device = known_device("RTX 3060").expect("in the table");
    let Err(PlanError::DoesNotFit { memory, needed_bytes, budget_bytes, .. }) =
        plan_for(&config, &device, 12 * GIB, Goal::Fastest)
    else {
        panic!("fourteen GiB of weights cannot fit into twelve");
    };
    assert_eq!((memory, budget_bytes), ("GPU", 12 * GIB));
    // The figure is a promise: with exactly that budget there is a plan.
    let chosen = plan_for(&config, &device, needed_bytes, Goal::Lowest).expect("the named budget is enough");
    assert!(chosen.report.gpu.planned_bytes <= needed_bytes);
}
