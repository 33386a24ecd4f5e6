//! Which plan is picked: budgets, pins, and the promise that the batch is the user's.

mod decoders;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use std::sync::Arc;

use plimsoll_graph::{DType, Program, ScheduleId, Streams};
use plimsoll_models::{Architecture, Head, Recipe, preset};
use plimsoll_plan::recompute::recompute as rebuilt;
use plimsoll_plan::{
    Budgets, Chosen, DeviceProfile, Fixed, Goal, Modes, Pins, PlanError, Request, SAME_SPEED, SaveMode, SavePin,
    WRITER_BYTES, assemble, estimate, known_device, plan,
};

const GIB: u64 = 1 << 30;
/// More than any plan here needs.
const PLENTY: u64 = 1 << 40;

/// A question to the planner, with defaults that each test changes where it matters.
struct Ask {
    config: Architecture,
    head: Arc<dyn Head>,
    recipe: Recipe,
    device: DeviceProfile,
    sequences: usize,
    tokens: Option<usize>,
    max_length: usize,
}

impl Ask {
    fn small(device: &str) -> Self {
        Self {
            config: decoders::config("llama", 32),
            head: decoders::head(false),
            recipe: decoders::full(),
            device: known_device(device).expect("in the table"),
            sequences: 12,
            tokens: None,
            max_length: 256,
        }
    }

    fn large(name: &str, recipe: Recipe, device: &str) -> Self {
        let recipe = Recipe { compute: DType::BF16, master: true, ..recipe };
        let config = preset(name).expect("a preset").expect("valid");
        let device = known_device(device).expect("in the table");
        Self { config, head: decoders::head(false), recipe, device, sequences: 8, tokens: None, max_length: 512 }
    }

    fn with_pins(&self, bytes: u64, goal: Goal, pins: Pins) -> Result<Chosen<Program>, PlanError> {
        let build = |variant| Ok(decoders::variant(&self.config, &*self.head, &self.recipe, variant));
        let staging = self.device.staging_bytes;
        plan(&Request {
            build: &build,
            sequences: self.sequences,
            tokens: self.tokens,
            group: decoders::group(&*self.head),
            max_length: Streams::one(self.max_length),
            chunked_loss: self.head.uses_vocabulary(),
            update_in_backward: match self.recipe.updates_one_by_one() {
                true => Ok(()),
                false => Err("gradients are clipped".to_owned()),
            },
            device: &self.device,
            // On a card, the host's staging is beside the budget that is asked about.
            budgets: Budgets { gpu_bytes: bytes, host_bytes: if bytes == 0 { 0 } else { bytes + staging } },
            fixed: Fixed {
                gpu_context_bytes: self.device.context_bytes,
                host_process_bytes: 1 << 20,
                host_data_bytes: 1 << 20,
            },
            goal,
            pins,
        })
    }

    fn plan(&self, bytes: u64, goal: Goal) -> Result<Chosen<Program>, PlanError> {
        self.with_pins(bytes, goal, Pins::default())
    }

    /// The budget that a refusal names.
    fn smallest(&self) -> u64 {
        match self.plan(4 << 20, Goal::Fastest) {
            Err(PlanError::DoesNotFit { needed_bytes, .. }) => needed_bytes,
            other => panic!("four MiB are not enough, but {other:?}"),
        }
    }
}

/// Bytes of the budget a plan takes, whichever memory its device computes in.
fn planned_bytes(chosen: &Chosen<Program>) -> u64 {
    chosen.report.gpu.planned_bytes.max(chosen.report.host.planned_bytes)
}

fn speed(chosen: &Chosen<Program>) -> f64 {
    chosen.report.predicted.tokens_per_s
}

fn recompute(classes: &[(&str, usize)]) -> Option<BTreeMap<String, usize>> {
    Some(classes.iter().map(|(name, layers)| ((*name).to_owned(), *layers)).collect())
}

/// The search sizes graphs that it does not make; the plan and its time are those of the graphs once made.
#[test]
fn plans_are_those_of_the_graphs_they_were_chosen_for() {
    let (mut adapted, mut whole) = (Ask::small("RTX 3060"), Ask::small("RTX 3060"));
    adapted.recipe = decoders::lora();
    whole.recipe.clip = None;
    let mut dropped = 0;
    for ask in [Ask::small("RTX 3060"), adapted, whole] {
        let smallest = ask.smallest();
        let largest = planned_bytes(&ask.plan(PLENTY, Goal::Fastest).expect("fits"));
        for bytes in [smallest, smallest.midpoint(largest), largest] {
            let chosen = ask.plan(bytes, Goal::Fastest).expect("fits");
            let micro_step = rebuilt(chosen.built.graph(ScheduleId::MICRO_STEP), &chosen.drops);
            let seconds = |graph| estimate(graph, &ask.device).seconds;
            let update = chosen.built.schedules.get(&ScheduleId::UPDATE).map_or(0.0, |update| seconds(&update.graph));
            let step_ms = (seconds(&micro_step) * chosen.report.accumulation as f64 + update) * 1e3;
            assert!((chosen.report.predicted.step_ms / step_ms - 1.0).abs() < 1e-9, "{step_ms} ms");
            let plan = assemble(&decoders::with_micro_step(&chosen.built, micro_step), &ask.device.traits);
            assert_eq!(format!("{plan:?}"), format!("{:?}", chosen.plan));
            dropped += usize::from(!chosen.drops.is_empty());
        }
    }
    assert!(dropped >= 3, "some rebuild");
}

/// Training comes first: a snapshot takes what its plan leaves of the host's memory, unless it is asked for.
#[test]
fn a_snapshot_takes_what_training_leaves() {
    let saved = |ask: &Ask, bytes: u64, goal: Goal, save: SavePin| {
        let pins = Pins { save, ..Pins::default() };
        ask.with_pins(bytes, goal, pins)
    };
    let mut on_cpu = Ask::small("RTX 3060");
    on_cpu.device = DeviceProfile::cpu(2, PLENTY, 100e9, 50e9, 20e9);
    let mut adapted = Ask::small("RTX 3060");
    adapted.recipe = decoders::lora();
    for (ask, goal) in [(Ask::small("RTX 3060"), Goal::Fastest), (on_cpu, Goal::Fastest), (adapted, Goal::Lowest)] {
        let ask = &ask;
        let between = saved(ask, PLENTY, goal, SavePin::Between).expect("fits").report;
        let beside = saved(ask, PLENTY, goal, SavePin::IfRoom).expect("fits").report;
        assert_eq!((between.save, between.host.categories.snapshot), (SaveMode::Between, 0));
        assert_eq!(beside.save, SaveMode::Beside);
        let arena = beside.host.categories.arena.unwrap_or(beside.gpu.categories);
        let trained = if ask.recipe.lora.is_some() { arena.adapters } else { arena.weights };
        let snapshot = beside.host.categories.snapshot;
        // What a checkpoint holds; in the arena, slots begin at round addresses.
        let in_arena = trained + arena.optimizer;
        let held = snapshot - WRITER_BYTES;
        assert!((in_arena - in_arena / 1000..=in_arena).contains(&held), "{held} of {in_arena}");
        assert_eq!(beside.host.planned_bytes, between.host.planned_bytes + snapshot);
        assert_eq!((beside.layout, beside.predicted), (between.layout, between.predicted), "training is the same");
        let pinned = saved(ask, PLENTY, goal, SavePin::Beside).expect("fits").report;
        assert_eq!(pinned.host.categories.snapshot, snapshot);
    }
    // In the smallest budget there is none, and to ask for one is to ask for more.
    let mut ask = Ask::small("RTX 3060");
    ask.device = DeviceProfile::cpu(2, PLENTY, 100e9, 50e9, 20e9);
    let smallest = ask.smallest();
    let report = saved(&ask, smallest, Goal::Fastest, SavePin::IfRoom).expect("fits").report;
    assert_eq!(report.save, SaveMode::Between);
    let Err(PlanError::DoesNotFit { needed_bytes, .. }) = saved(&ask, smallest, Goal::Fastest, SavePin::Beside) else {
        panic!("there is no room")
    };
    let report = saved(&ask, needed_bytes, Goal::Fastest, SavePin::Beside).expect("that is what it said").report;
    assert_eq!((report.save, report.host.planned_bytes), (SaveMode::Beside, needed_bytes));
    assert_eq!(needed_bytes, smallest + report.host.categories.snapshot);
}

#[test]
fn pins_are_honoured() {
    let ask = Ask::small("RTX 3060");
    for goal in [Goal::Fastest, Goal::Lowest] {
        for tokens in [256, 300, 1024, 3072, 4096] {
            let pins = Pins { micro_batch_tokens: Some(tokens), ..Pins::default() };
            let chosen = ask.with_pins(PLENTY, goal, pins).expect("fits");
            assert_eq!((chosen.batch.tokens(), chosen.report.micro_batch_tokens), (tokens, tokens));
            assert_eq!(chosen.report.effective_batch.sequences, 12);
            assert_eq!(chosen.report.accumulation, 12usize.div_ceil(tokens / 256), "{tokens} tokens");
        }
        for chunks in [1, 2, 7, 64] {
            let pins = Pins { loss_chunks: Some(chunks), ..Pins::default() };
            let chosen = ask.with_pins(PLENTY, goal, pins).expect("fits");
            assert_eq!((chosen.chunks.loss, chosen.report.loss_chunks), (chunks, chunks));
        }
        for classes in [&[][..], &[("gate_up", 2)], &[("gate_up", 4), ("attn_norm", 1), ("rotated", 3)]] {
            let pins = Pins { recompute: recompute(classes), ..Pins::default() };
            let chosen = ask.with_pins(PLENTY, goal, pins).expect("fits");
            assert_eq!(Some(chosen.report.recompute), recompute(classes));
        }
    }
}

#[test]
fn pins_that_cannot_be_honoured_are_refused_with_their_name() {
    let ask = Ask::small("RTX 3060");
    let check = |pins: Pins, expected: &[&str]| {
        let refusal = ask.with_pins(PLENTY, Goal::Fastest, pins.clone());
        let Err(PlanError::Pin { reason: message, .. }) = refusal else { panic!("{pins:?} is accepted") };
        for part in expected {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    };
    let tokens = |n| Pins { micro_batch_tokens: Some(n), ..Pins::default() };
    check(tokens(255), &["plan.micro_batch_tokens", "255", "256", "data.max_length"]);
    check(tokens(0), &["plan.micro_batch_tokens"]);
    let classes = |c| Pins { recompute: recompute(&[c]), ..Pins::default() };
    check(classes(("gate_down", 1)), &["plan.recompute", "gate_down", "gate_up", "attn_norm"]);
    check(classes(("gate_up", 5)), &["plan.recompute.gate_up", "5", "4"]);
    let chunks = |n| Pins { loss_chunks: Some(n), ..Pins::default() };
    check(chunks(0), &["plan.loss_chunks", "0"]);
    check(chunks(256 * 12 + 1), &["plan.loss_chunks", "3073"]);
}

#[test]
fn a_pinned_plan_that_does_not_fit_is_refused_not_changed() {
    let ask = Ask::small("RTX 3060");
    let pins = Pins { micro_batch_tokens: Some(3072), recompute: recompute(&[]), ..Pins::default() };
    let budget = ask.smallest();
    let Err(PlanError::DoesNotFit { needed_bytes, .. }) = ask.with_pins(budget, Goal::Fastest, pins.clone()) else {
        panic!("the largest plan cannot fit where only the smallest does");
    };
    assert!(needed_bytes > budget);
    let chosen = ask.with_pins(needed_bytes, Goal::Fastest, pins).expect("the named budget is enough");
    assert_eq!(chosen.batch.tokens(), 3072);
}

#[test]
fn an_update_of_nothing_is_refused() {
    for (sequences, max_length) in [(0, 256), (12, 0)] {
        let ask = Ask { sequences, max_length, ..Ask::small("cpu") };
        assert!(matches!(ask.plan(PLENTY, Goal::Fastest), Err(PlanError::Batch(_))));
    }
}

#[test]
fn the_named_budget_is_the_border() {
    for device in ["cpu", "RTX 3060"] {
        for recipe in [decoders::full(), decoders::lora()] {
            let ask = Ask { recipe, ..Ask::small(device) };
            let smallest = ask.smallest();
            for goal in [Goal::Fastest, Goal::Lowest] {
                let chosen = ask.plan(smallest, goal).expect("the named budget is enough");
                assert!(planned_bytes(&chosen) <= smallest, "{device}");
                let refusal = ask.plan(smallest - 1, goal);
                let Err(PlanError::DoesNotFit { needed_bytes, budget_bytes, largest, .. }) = refusal else {
                    panic!("{device}: one byte less than the smallest is accepted");
                };
                assert_eq!((needed_bytes, budget_bytes), (smallest, smallest - 1));
                assert_eq!(largest.iter().map(|(_, bytes)| bytes).sum::<u64>(), needed_bytes);
                assert!(largest.is_sorted_by_key(|(_, bytes)| std::cmp::Reverse(*bytes)));
            }
        }
    }
}

#[test]
fn a_large_model_fits_into_the_budget_it_was_told() {
    for recipe in [decoders::lora(), decoders::full()] {
        let ask = Ask::large("qwen2.5-1.5b", recipe, "RTX 3060");
        let smallest = ask.smallest();
        for bytes in [smallest, smallest + (1 << 20), smallest + (16 << 20)] {
            let chosen = ask.plan(bytes, Goal::Fastest).expect("the named budget is enough");
            assert!(planned_bytes(&chosen) <= bytes);
        }
    }
}

#[test]
fn no_budget_at_all_is_a_refusal() {
    for device in ["cpu", "H100"] {
        let refusal = Ask::small(device).plan(0, Goal::Fastest);
        assert!(matches!(refusal, Err(PlanError::DoesNotFit { budget_bytes: 0, .. })), "{device}");
    }
}

/// Budgets from the smallest that works to twice what the fastest plan takes, closer together at the small end.
fn budgets(ask: &Ask, count: u32) -> Vec<u64> {
    let smallest = ask.smallest();
    let fastest = planned_bytes(&ask.plan(PLENTY, Goal::Fastest).expect("fits"));
    let ratio = 2.0 * fastest as f64 / smallest as f64;
    (0..=count).map(|i| (smallest as f64 * ratio.powf(f64::from(i) / f64::from(count))) as u64).collect()
}

#[test]
fn more_memory_is_never_slower() {
    for device in ["cpu", "RTX 3060"] {
        for recipe in [decoders::full(), decoders::lora()] {
            let ask = Ask { recipe, ..Ask::small(device) };
            let mut fastest_so_far = 0.0f64;
            for bytes in budgets(&ask, 24) {
                let chosen = ask.plan(bytes, Goal::Fastest).expect("above the smallest");
                assert!(planned_bytes(&chosen) <= bytes);
                let slowest_allowed = fastest_so_far * (1.0 - SAME_SPEED);
                assert!(speed(&chosen) >= slowest_allowed, "{device}: slower with {bytes} bytes: {:?}", chosen.report);
                fastest_so_far = fastest_so_far.max(speed(&chosen));
            }
        }
    }
}

#[test]
fn the_lowest_plan_is_below_every_other() {
    for device in ["cpu", "RTX 3060"] {
        for recipe in [decoders::full(), decoders::lora()] {
            let ask = Ask { recipe, ..Ask::small(device) };
            let lowest = ask.plan(PLENTY, Goal::Lowest).expect("fits");
            assert_eq!(planned_bytes(&lowest), ask.smallest(), "{device}: a refusal names the lowest plan");
            for bytes in budgets(&ask, 12) {
                let other = ask.plan(bytes, Goal::Fastest).expect("above the smallest");
                assert!(planned_bytes(&lowest) <= planned_bytes(&other), "{device}: {:?}", other.report);
            }
            for tokens in [256, 512, 1024, 3072] {
                for classes in [None, recompute(&[]), recompute(&[("gate_up", 4), ("mlp_act", 4)])] {
                    let pins = Pins { micro_batch_tokens: Some(tokens), recompute: classes, ..Pins::default() };
                    let other = ask.with_pins(PLENTY, Goal::Lowest, pins).expect("fits");
                    assert!(planned_bytes(&lowest) <= planned_bytes(&other), "{device}: {:?}", other.report);
                }
            }
        }
    }
}

#[test]
fn an_update_in_tokens_has_room_for_short_sequences() {
    let in_sequences = Ask { sequences: 12, ..Ask::small("RTX 3060") };
    let in_tokens = Ask { tokens: Some(12 * 256 + 100), ..Ask::small("RTX 3060") };
    let [exact, open] = [&in_sequences, &in_tokens].map(|ask| ask.plan(PLENTY, Goal::Fastest).expect("fits"));
    assert!(!exact.report.effective_batch.in_tokens && open.report.effective_batch.in_tokens);
    assert_eq!(open.report.effective_batch.tokens_max, 12 * 256 + 100);
    // The same micro-batches, as for twelve sequences of the greatest length.
    assert_eq!(open.report.micro_batch_tokens, exact.report.micro_batch_tokens);
    assert_eq!(open.report.accumulation, exact.report.accumulation);
    let full = open.report.micro_batch_tokens / 256;
    assert!(open.batch.main().sequences >= 16 * full + full, "{:?}", open.batch);
}

#[test]
fn the_effective_batch_is_exactly_the_users() {
    for sequences in [1, 2, 3, 5, 7, 11, 13, 31, 61, 97] {
        let ask = Ask { sequences, ..Ask::small("RTX 3060") };
        let smallest = ask.smallest();
        for bytes in [smallest, smallest + smallest / 4, PLENTY] {
            let chosen = ask.plan(bytes, Goal::Fastest).expect("fits");
            let report = &chosen.report;
            assert_eq!(report.effective_batch.sequences, sequences);
            assert_eq!(report.effective_batch.tokens_max, sequences * 256);
            assert_eq!(report.accumulation * report.micro_batch_tokens, sequences * 256, "{sequences} sequences");
            assert!(chosen.batch.main().sequences >= report.micro_batch_tokens / 256);
        }
    }
}

/// Sequences that are compared with each other are never parted, whatever the budget.
#[test]
fn pairs_share_a_micro_batch() {
    for recipe in [decoders::full(), decoders::lora()] {
        for sequences in [2, 6, 10, 12, 62] {
            let ask = Ask { sequences, head: decoders::head(true), recipe: recipe.clone(), ..Ask::small("RTX 3060") };
            for bytes in [ask.smallest(), PLENTY] {
                let chosen = ask.plan(bytes, Goal::Fastest).expect("fits");
                let report = &chosen.report;
                assert!(report.micro_batch_tokens.is_multiple_of(512), "{sequences}: {report:?}");
                assert_eq!(report.accumulation * report.micro_batch_tokens, sequences * 256);
                assert!(chosen.batch.main().sequences.is_multiple_of(2));
            }
        }
        let ask = Ask { sequences: 12, head: decoders::head(true), recipe: recipe.clone(), ..Ask::small("cpu") };
        let pinned = |tokens| {
            let pins = Pins { micro_batch_tokens: Some(tokens), ..Pins::default() };
            ask.with_pins(PLENTY, Goal::Fastest, pins)
        };
        // Three sequences hold one pair for certain.
        assert_eq!(pinned(768).expect("fits").report.accumulation, 6);
        assert_eq!(pinned(1025).expect("fits").report.accumulation, 3);
        assert!(
            matches!(pinned(511), Err(PlanError::Pin { reason: message, .. }) if message.contains("a group of 2 sequences"))
        );
        let odd = Ask { sequences: 7, head: decoders::head(true), recipe, ..Ask::small("cpu") };
        assert!(matches!(odd.plan(PLENTY, Goal::Fastest), Err(PlanError::Batch(_))));
    }
}

#[test]
fn the_report_says_what_was_chosen() {
    let ask = Ask::small("RTX 3060");
    for bytes in budgets(&ask, 6) {
        let chosen = ask.plan(bytes, Goal::Fastest).expect("fits");
        let report = &chosen.report;
        let marked: Vec<_> = report.alternatives.iter().filter(|a| a.chosen).collect();
        assert_eq!(marked.len(), 1, "{:?}", report.alternatives);
        assert_eq!(marked[0].tokens_per_s, report.predicted.tokens_per_s);
        assert!(report.alternatives.iter().all(|a| a.fits == a.why_not.is_none()));
        assert!(report.alternatives.is_sorted_by_key(|a| std::cmp::Reverse(a.gpu_bytes)));
        assert_eq!(report.layout.arena_bytes, chosen.plan.arena_bytes as u64);
        let eager = chosen.plan.arena_bytes as u64 + ask.device.context_bytes;
        let recorded = report.gpu.categories.recorded;
        assert!(recorded > 0);
        assert_eq!(report.gpu.planned_bytes, eager + recorded);
        assert_eq!(report.modes, Some(Modes { compiled_bytes: eager + recorded, eager_bytes: eager }));
    }
}

#[test]
fn layouts_of_large_models_lie_close_to_their_lower_bound() {
    for (name, recipe, sequences, max_length) in [
        ("mistral-7b", decoders::lora(), 8, 512),
        ("mistral-7b", decoders::lora(), 16, 2048),
        ("llama-3.1-8b", decoders::full(), 8, 512),
        ("llama-3.1-8b", decoders::full(), 7, 2048),
    ] {
        let ask = Ask { sequences, max_length, ..Ask::large(name, recipe, "H200") };
        for goal in [Goal::Fastest, Goal::Lowest] {
            let chosen = ask.plan(ask.device.memory_bytes, goal).expect("fits");
            let layout = &chosen.report.layout;
            let bound = layout.lower_bound_bytes as f64;
            assert!(layout.arena_bytes as f64 <= 1.01 * bound, "{name}, {goal:?}: {layout:?}");
            assert!(chosen.report.gpu.planned_bytes <= ask.device.memory_bytes);
        }
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "the time is worth seeing, and too unsteady to be judged closely")]
fn planning_a_large_model_is_quick() {
    let ask = Ask::large("mistral-7b", decoders::lora(), "RTX 4090");
    for gib in [24, 80] {
        let begin = Instant::now();
        ask.plan(gib * GIB, Goal::Fastest).expect("fits");
        let taken = begin.elapsed();
        eprintln!("plan for mistral-7b, LoRA, 8 × 512, {gib} GiB: {} ms", taken.as_millis());
        assert!(taken < Duration::from_secs(10), "{taken:?}");
    }
}

/// Gradients that do not all exist at once cost less than recompute does; where everything fits, updates stay whole.
#[test]
fn updates_move_into_the_backward_pass_where_memory_is_short() {
    let recipe = Recipe { clip: None, ..decoders::full() };
    let ask = Ask { recipe, sequences: 1, max_length: 1024, ..Ask::small("H200") };
    let behind = || Pins { update_in_backward: Some(false), ..Pins::default() };
    let plenty = ask.plan(PLENTY, Goal::Fastest).expect("fits");
    assert!(!plenty.update_in_backward && plenty.report.recompute.is_empty());
    let lowest = ask.plan(PLENTY, Goal::Lowest).expect("fits");
    let lowest_behind = ask.with_pins(PLENTY, Goal::Lowest, behind()).expect("fits");
    assert!(lowest.report.update_in_backward);
    assert!(lowest.report.gpu.planned_bytes < lowest_behind.report.gpu.planned_bytes);
    let budget = lowest.report.gpu.planned_bytes.midpoint(lowest_behind.report.gpu.planned_bytes);
    let tight = ask.plan(budget, Goal::Fastest).expect("fits");
    assert!(tight.report.gpu.planned_bytes <= budget);
    assert!(tight.update_in_backward, "{:?}", tight.report.alternatives);
    assert!(tight.report.gpu.categories.gradients < plenty.report.gpu.categories.gradients);
    let refused = ask.with_pins(budget, Goal::Fastest, behind());
    assert!(matches!(refused, Err(PlanError::DoesNotFit { .. })));
    let named = |chosen: &Chosen<Program>, name: &str| chosen.report.alternatives.iter().any(|a| a.name == name);
    assert!(named(&plenty, "update in backward") && named(&tight, "update behind the backward pass"));
    // Several micro-batches sum gradients up first.
    let several = Ask { sequences: 12, ..ask };
    let pins = Pins { micro_batch_tokens: Some(1024), ..Pins::default() };
    let chosen = several.with_pins(PLENTY, Goal::Lowest, pins).expect("fits");
    assert!(!chosen.update_in_backward && chosen.report.accumulation == 12);
}
