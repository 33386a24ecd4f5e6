//! Dropping values of real decoders: what is dropped is gone at the loss, what the backward pass
//! reads is the same as before, and the way back is the short one.

mod decoders;
mod symbols;

use std::collections::{BTreeSet, HashSet};

use decoders::{Score, Vocabulary};
use plimsoll_graph::{BackendTraits, Class, Extent, Graph, Node, Op, Phase, Program, ScheduleId, ValueId};
use plimsoll_models::{Head, Recipe};
use plimsoll_plan::lifetimes::lifetimes;
use plimsoll_plan::recompute::{droppable, recompute};
use plimsoll_plan::verify::verify;
use plimsoll_plan::{Drops, assemble};

const TRAITS: BackendTraits =
    BackendTraits { workers: 2, partial_rows: 0, matmul_workspace_bytes: 0, multiplies_codes: false };

fn programs() -> Vec<(&'static str, Program)> {
    let batch = decoders::batch(12, 3, 8);
    let with_head = |head: &dyn Head, family: &str, recipe: &Recipe| {
        decoders::program(&decoders::config(family, 4), head, recipe, batch, 3)
    };
    let program = |family: &str, recipe: &Recipe| with_head(&Vocabulary, family, recipe);
    let half = ["model.embed_tokens*", "model.layers.0", "model.layers.1"].map(str::to_owned).to_vec();
    let values = Recipe { freeze: vec!["*.v_proj*".into()], ..decoders::full() };
    vec![
        ("llama, full", program("llama", &decoders::full())),
        ("llama, LoRA", program("llama", &decoders::lora())),
        ("llama, first half frozen", program("llama", &Recipe { freeze: half, ..decoders::full() })),
        ("mistral, projections stored apart", program("mistral", &values)),
        ("qwen2, full, with biases", program("qwen2", &decoders::full())),
        ("qwen3, full", program("qwen3", &decoders::full())),
        ("qwen3, LoRA", program("qwen3", &decoders::lora())),
        ("llama, reward, full", with_head(&Score, "llama", &decoders::full())),
        ("qwen3, reward, LoRA", with_head(&Score, "qwen3", &decoders::lora())),
    ]
}

fn only(class: Class, layers: usize) -> Drops {
    Drops::of([(class, layers)])
}

fn everything(graph: &Graph) -> Drops {
    Drops::of(droppable(graph).into_iter().map(|(class, layers)| (class, layers.len())))
}

/// Every class alone in each number of layers, then all of them together.
fn all_drops(graph: &Graph) -> Vec<Drops> {
    let classes = droppable(graph);
    assert!(classes.len() >= 7, "classes are missing: {:?}", classes.keys());
    let alone = classes.iter().flat_map(|(&class, layers)| (0..=layers.len()).map(move |k| only(class, k)));
    alone.chain([everything(graph)]).collect()
}

fn loss_node(graph: &Graph) -> usize {
    graph.nodes.iter().position(|n| matches!(n.op, Op::VocabLoss(_) | Op::PairLoss(_))).expect("a loss")
}

/// Layers of the nodes that rebuild something.
fn rebuilt_layers(graph: &Graph) -> BTreeSet<Option<u32>> {
    graph.nodes.iter().filter(|n| n.phase == Phase::Recompute).map(|n| n.layer).collect()
}

/// The least memory in which the loss can run, with all that is kept for the backward pass.
fn bytes_at_loss(graph: &Graph) -> usize {
    lifetimes(graph, &TRAITS).profile()[loss_node(graph)]
}

/// Values made up to the loss and read after it.
fn kept_at_loss(graph: &Graph) -> Vec<ValueId> {
    let (forward, backward) = graph.nodes.split_at(loss_node(graph) + 1);
    let read: HashSet<ValueId> = backward.iter().flat_map(|n| n.inputs.iter().copied()).collect();
    let made = forward.iter().flat_map(|n| n.outputs.iter().copied());
    made.filter(|&v| graph.value(v).slot.is_none() && read.contains(&v)).collect()
}

#[test]
fn each_further_layer_frees_memory_at_the_loss_or_changes_nothing() {
    for (name, program) in programs() {
        let graph = program.graph(ScheduleId::MICRO_STEP);
        let before = bytes_at_loss(graph);
        for (class, layers) in droppable(graph) {
            let mut previous = before;
            for k in 0..=layers.len() {
                let bytes = bytes_at_loss(&recompute(graph, &only(class, k)));
                assert!(bytes <= previous, "{name}: {} in {k} layers: {bytes} after {previous}", class.0);
                previous = bytes;
            }
            assert!(previous < before, "{name}: dropping {} in all layers frees nothing", class.0);
        }
        assert!(bytes_at_loss(&recompute(graph, &everything(graph))) < before / 2, "{name}");
    }
}

#[test]
fn dropped_values_are_gone_at_the_loss_in_the_first_layers_only() {
    for (name, program) in programs() {
        let graph = program.graph(ScheduleId::MICRO_STEP);
        for (class, layers) in droppable(graph) {
            for k in 0..=layers.len() {
                let dropped = recompute(graph, &only(class, k));
                let kept = kept_at_loss(&dropped).into_iter().map(|v| dropped.value(v));
                let kept: BTreeSet<_> = kept.filter(|v| v.class == class).map(|v| v.layer).collect();
                assert_eq!(kept, layers.iter().skip(k).copied().collect(), "{name}: {} in {k} layers", class.0);
            }
        }
    }
}

#[test]
fn the_backward_pass_reads_what_it_read_before() {
    for (name, program) in programs() {
        let graph = program.graph(ScheduleId::MICRO_STEP);
        let reads = |graph: &Graph| -> Vec<(Op, Vec<String>, Vec<ValueId>)> {
            let label = |v: &ValueId| {
                let value = graph.value(*v);
                format!("{} {} {:?} {:?}", value.name, value.shape, value.dtype(), value.layer)
            };
            let backward = graph.nodes.iter().filter(|n| n.phase != Phase::Recompute);
            backward.map(|n| (n.op.clone(), n.inputs.iter().map(label).collect(), n.outputs.clone())).collect()
        };
        let before = reads(graph);
        let meant = symbols::meaning(graph, &program.slots);
        for drops in all_drops(graph) {
            let dropped = recompute(graph, &drops);
            assert!(before == reads(&dropped), "{name}: {drops:?} changes what is read");
            assert!(meant == symbols::meaning(&dropped, &program.slots), "{name}: {drops:?} changes what comes out");
        }
    }
}

#[test]
fn what_is_rebuilt_is_there_before_it_is_read_and_not_for_nothing() {
    for (name, program) in programs() {
        let graph = program.graph(ScheduleId::MICRO_STEP);
        for drops in all_drops(graph) {
            let dropped = recompute(graph, &drops);
            let made_by = dropped.producers();
            for (index, node) in dropped.nodes.iter().enumerate() {
                let early = |v: &&ValueId| made_by[v.index()].is_some_and(|producer| producer.0 as usize >= index);
                assert_eq!(node.inputs.iter().find(early), None, "{name}: {drops:?}, node {index}");
                if node.phase != Phase::Recompute {
                    continue;
                }
                assert!(index > loss_node(&dropped), "{name}: {drops:?}: rebuilt before the loss");
                let later = &dropped.nodes[index + 1..];
                let read = node.outputs.iter().any(|o| later.iter().any(|n| n.inputs.contains(o)));
                assert!(read, "{name}: {drops:?}: node {index} is rebuilt for nobody");
            }
            let rebuilds = dropped.nodes.iter().any(|n| n.phase == Phase::Recompute);
            assert_eq!(rebuilds, !drops.is_empty(), "{name}: {drops:?}");
        }
    }
}

#[test]
fn a_layer_is_rebuilt_without_the_ones_before_it() {
    for (name, program) in programs() {
        let graph = program.graph(ScheduleId::MICRO_STEP);
        for (class, layers) in droppable(graph) {
            for k in 1..=layers.len() {
                let rebuilt = rebuilt_layers(&recompute(graph, &only(class, k)));
                let mut allowed: BTreeSet<Option<u32>> = layers.iter().take(k).copied().collect();
                // The embedding belongs to no layer, and stands before the first.
                allowed.insert(None);
                assert!(rebuilt.is_subset(&allowed), "{name}: {} in {k} layers: {rebuilt:?}", class.0);
            }
        }
    }
}

#[test]
fn a_norm_is_rebuilt_from_its_sum_alone() {
    for (name, program) in programs() {
        let graph = program.graph(ScheduleId::MICRO_STEP);
        for class in [Class("attn_norm"), Class("mlp_norm")] {
            let layers = droppable(graph)[&class].len();
            let dropped = recompute(graph, &only(class, layers));
            let rebuilt = dropped.nodes.iter().filter(|n| n.phase == Phase::Recompute).map(|n| &n.op);
            // Where no gradient reaches the embedding it is not kept, and looked up again.
            let rebuilt: Vec<&Op> = rebuilt.filter(|op| !matches!(op, Op::Embed(_))).collect();
            assert_eq!(rebuilt.len(), layers, "{name}: one operator for each {}", class.0);
            let short = |op: &&&Op| matches!(op, Op::RmsNorm(norm) if !norm.residual);
            assert_eq!(rebuilt.iter().find(|op| !short(op)), None, "{name}: {}", class.0);
        }
    }
}

#[test]
fn a_norm_whose_sum_is_dropped_too_is_rebuilt_with_it_once() {
    let (name, program) = programs().swap_remove(0);
    let drops = Drops::of(["mlp_norm", "residual_mid"].map(|class| (Class(class), 1)));
    let dropped = recompute(program.graph(ScheduleId::MICRO_STEP), &drops);
    let norms = dropped.nodes.iter().filter(|n| n.phase == Phase::Recompute);
    let norms: Vec<bool> =
        norms.filter_map(|n| if let Op::RmsNorm(norm) = &n.op { Some(norm.residual) } else { None }).collect();
    assert_eq!(norms, [true], "{name}");
}

#[test]
fn with_everything_dropped_only_the_layers_inputs_are_kept() {
    for (name, program) in programs() {
        let graph = program.graph(ScheduleId::MICRO_STEP);
        let dropped = recompute(graph, &everything(graph));
        let trained: BTreeSet<_> = droppable(graph).values().flatten().copied().collect();
        let rows = |v: ValueId| dropped.value(v).shape.rows();
        for layer in (0..decoders::LAYERS as u32).map(Some) {
            // Rows of last tokens are too few to be dropped.
            let counts =
                |v: &ValueId| dropped.value(*v).layer == layer && dropped.value(*v).extent != Extent::SEQUENCES;
            let kept = kept_at_loss(&dropped).into_iter().filter(counts);
            let (statistics, wide): (Vec<_>, Vec<_>) = kept.partition(|&v| {
                let value = dropped.value(v);
                value.name.ends_with(".rstd") || value.name.ends_with("attn_lse")
            });
            let wide: Vec<&str> = wide.iter().map(|&v| &*dropped.value(v).name).collect();
            let input = format!("layers.{}.layer_input", layer.unwrap_or_default());
            assert!(wide.iter().all(|w| *w == input) && wide.len() <= 1, "{name}: {wide:?}");
            let low_rank = statistics.iter().all(|&v| dropped.value(v).bytes() <= rows(v) * 8 * 4);
            assert!(low_rank, "{name}: statistics are a few numbers for each token");
            assert!(trained.contains(&layer) || (wide.is_empty() && statistics.is_empty()), "{name}: a frozen layer");
        }
        let outside = kept_at_loss(&dropped).into_iter().filter(|&v| dropped.value(v).layer.is_none());
        let outside: BTreeSet<&str> = outside.map(|v| &*dropped.value(v).name).collect();
        assert!(outside.is_subset(&["final_input", "final_norm.rstd", "d_hidden"].into()), "{name}: {outside:?}");
    }
}

#[test]
fn plans_with_dropped_classes_hold() {
    for (name, program) in programs() {
        for drops in all_drops(program.graph(ScheduleId::MICRO_STEP)) {
            let micro_step = recompute(program.graph(ScheduleId::MICRO_STEP), &drops);
            let plan = assemble(&decoders::with_micro_step(&program, micro_step), &TRAITS);
            assert_eq!(verify(&plan), Ok(()), "{name}: {drops:?}");
            assert!(plan.arena_bytes >= plan.lower_bound_bytes);
        }
    }
}

/// Behind the last attention of a reward model there is a row for each sequence, and memory for no more. The ids that
/// say what is dropped come along.
#[test]
fn reward_models_go_on_with_a_row_per_sequence() {
    let batch = decoders::batch(96, 4, 24);
    for recipe in [decoders::full(), decoders::lora()] {
        let program = decoders::program(&decoders::config("llama", 8), &Score, &recipe, batch, 1);
        for graph in [program.graph(ScheduleId::MICRO_STEP), program.graph(ScheduleId::EVALUATE)] {
            let attention = graph.nodes.iter().rposition(|n| matches!(n.op, Op::Attention(_))).expect("attention");
            let behind = &graph.nodes[attention + 1..=loss_node(graph)];
            let made = behind.iter().flat_map(|n| &n.outputs).map(|&v| graph.value(v)).filter(|v| v.slot.is_none());
            assert!(made.clone().count() > 10);
            for value in made {
                let found = (value.extent, value.shape.rows());
                assert_eq!(found, (Extent::SEQUENCES, batch.main().sequences), "{}", value.name);
            }
        }
        let all_rows = decoders::program(&decoders::config("llama", 8), &Vocabulary, &recipe, batch, 1);
        let kept = |graph: &Graph| -> usize {
            let layer = Some(decoders::LAYERS as u32 - 1);
            let values = kept_at_loss(graph).into_iter().map(|v| graph.value(v));
            values.filter(|v| v.layer == layer).map(|v| v.bytes()).sum()
        };
        let (few, all) = (kept(program.graph(ScheduleId::MICRO_STEP)), kept(all_rows.graph(ScheduleId::MICRO_STEP)));
        assert!(3 * few < 2 * all, "{few} bytes of the last layer are kept, and {all} for every token");
    }
}

/// With frozen layers below and frozen norms, nothing but the dropped norm needs its layer's input;
/// it is kept then, and the frozen layers are not run again.
#[test]
fn frozen_layers_are_not_run_again() {
    let frozen = ["model.embed_tokens", "model.layers.0", "model.layers.1", "*norm*"].map(str::to_owned).to_vec();
    let recipe = Recipe { freeze: frozen, ..decoders::full() };
    let batch = decoders::batch(32, 4, 16);
    let program = decoders::program(&decoders::config("llama", 8), &Vocabulary, &recipe, batch, 1);
    let rebuilt = recompute(program.graph(ScheduleId::MICRO_STEP), &only(Class("attn_norm"), 1));
    let again: Vec<_> = rebuilt.nodes.iter().filter(|n| n.phase == Phase::Recompute).collect();
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(matches!(&again[0].op, Op::RmsNorm(norm) if !norm.residual));
}

/// What the activation makes is made once more by its gradient, which whoever reads it waits for.
#[test]
fn values_are_taken_from_gradients_that_make_them_on_their_way() {
    let class = Class("mlp_act");
    for (name, program) in programs() {
        let graph = program.graph(ScheduleId::MICRO_STEP);
        let Some(layers) = droppable(graph).get(&class).map(BTreeSet::len) else { continue };
        // What adapters make of it is needed before its gradient is.
        let classes = everything(graph).classes.into_iter().filter(|(class, _)| class.0 != "adapter");
        for drops in [only(class, layers), Drops::of(classes)] {
            for (on_the_way, expected) in [(false, (layers, 0)), (true, (0, layers))] {
                let dropped = recompute(graph, &Drops { on_the_way, ..drops.clone() });
                let again = |n: &&Node| n.phase == Phase::Recompute && matches!(n.op, Op::Gated(_));
                let beside = |n: &&Node| matches!(&n.op, Op::GatedGrad(op) if op.with_value);
                let counted = dropped.nodes.iter().filter(again).count();
                assert_eq!((counted, dropped.nodes.iter().filter(beside).count()), expected, "{name}: {drops:?}");
                let plan = assemble(&decoders::with_micro_step(&program, dropped), &TRAITS);
                assert_eq!(verify(&plan), Ok(()), "{name}: {drops:?}");
            }
        }
    }
}
