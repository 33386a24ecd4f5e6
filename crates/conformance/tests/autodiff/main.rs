//! Whole graphs through `differentiate`: the gradient of every trainable parameter beside central
//! differences of the loss, once with the derived graph in f64, once on every backend.

mod decoder;

use std::collections::HashMap;

use plimsoll_conformance::reference::{self, Array, MaskSource, finite_difference};
use plimsoll_conformance::{Harness, Placement, Suite, Tensor, compare, walk};
use plimsoll_graph::ops::{Activation, InnerDropout, VocabLoss};
use plimsoll_graph::{
    Class, DType, Extent, Graph, GraphError, Node, Op, Phase, Role, Shape, Slot, SlotId, SlotTable, ValueId,
    differentiate, fuse_backward, fuse_forward, sink_gradients,
};

use crate::decoder::{ACTIVE, Lora, Model, Options, PLAIN, decoder};

/// What central differences leave of an f64 gradient.
const F64_TOLERANCE: f64 = 1e-7;
/// A dozen f32 operators one behind another, each with the error that `F32_SUMS` allows it, seldom
/// in the same direction.
const F32_TOLERANCE: f64 = 2e-5;

/// Masks of one backend, each asked for once: a graph's row ids and key do not change.
struct Masks<'a> {
    harness: &'a mut Harness,
    known: HashMap<(u32, usize), Vec<bool>>,
}

impl MaskSource for Masks<'_> {
    fn keep(&mut self, dropout: InnerDropout, row_ids: &Array, key: &Array, cols: usize) -> Vec<bool> {
        let ask = || MaskSource::keep(self.harness, dropout, row_ids, key, cols);
        self.known.entry((dropout.site, cols)).or_insert_with(ask).clone()
    }
}

/// The newest version of a slot's value.
fn newest(graph: &Graph, slot: SlotId) -> ValueId {
    let index = graph.values.iter().rposition(|v| v.slot == Some(slot)).expect("in the graph");
    ValueId(index as u32)
}

fn run_f64(graph: &Graph, content: &[(ValueId, Array)], masks: &mut Masks) -> Vec<Option<Array>> {
    walk(graph, content.iter().cloned(), |node, inputs| reference::evaluate(&node.op, inputs, masks))
}

struct Differentiated {
    graph: Graph,
    slots: SlotTable,
    gradients: Vec<SlotId>,
}

fn derive(model: &Model, trainable: &[ValueId]) -> Differentiated {
    let mut derived = derive_as_emitted(model, trainable);
    sink_gradients(&mut derived.graph);
    derived
}

/// Operators in the order in which the rules emit them.
fn derive_as_emitted(model: &Model, trainable: &[ValueId]) -> Differentiated {
    let (mut graph, mut slots) = (model.graph.clone(), model.slots.clone());
    fuse_forward(&mut graph);
    let gradients = differentiate(&mut graph, &mut slots, trainable, DType::F32).expect("differentiable");
    fuse_backward(&mut graph);
    Differentiated { graph, slots, gradients }
}

/// Compares the gradients of all trainable parameters with the slopes of the loss.
fn check(name: &str, model: &Model, trainable: &[ValueId]) {
    let derived = derive(model, trainable);
    for harness in Suite::new().harnesses() {
        let mut masks = Masks { harness: &mut *harness, known: HashMap::new() };
        let arrays: Vec<(ValueId, Array)> = model.content.iter().map(|(v, t)| (*v, t.array(ACTIVE))).collect();
        let slopes: Vec<Array> = trainable.iter().map(|&p| slope(model, &arrays, p, &mut masks)).collect();

        // Gradients begin at something, to which the graph must add.
        let begin = |slot: &SlotId| Array::filled(derived.slots.get(*slot).shape.dims(), 0.5);
        let first = |slot: &SlotId| first_version(&derived.graph, *slot);
        let mut content = arrays.clone();
        content.extend(derived.gradients.iter().map(|slot| (first(slot), begin(slot))));
        let exact = run_f64(&derived.graph, &content, &mut masks);

        let mut content = model.content.clone();
        content.extend(derived.gradients.iter().map(|slot| (first(slot), zeros(&derived, *slot))));
        let single = walk(&derived.graph, content, |node, inputs| {
            let inputs: Vec<Tensor> = inputs.iter().map(|t| (*t).clone()).collect();
            harness.run(&node.op, &inputs, ACTIVE, &Placement::default())
        });

        for (slot, slope) in derived.gradients.iter().zip(&slopes) {
            let label = format!("{name}: {} on {}", derived.slots.get(*slot).name, harness.name());
            let value = newest(&derived.graph, *slot).index();
            let got = exact[value].as_ref().expect("a gradient").map(|g| g - 0.5);
            compare(&got, slope, F64_TOLERANCE).unwrap_or_else(|e| panic!("{label}: derived graph in f64: {e}"));
            assert!(slope.data.iter().any(|&s| s != 0.0), "{label}: the loss does not depend on it");
            let got = single[value].as_ref().expect("a gradient").array(ACTIVE);
            compare(&got, slope, F32_TOLERANCE).unwrap_or_else(|e| panic!("{label}: {e}"));
        }
    }
}

fn first_version(graph: &Graph, slot: SlotId) -> ValueId {
    ValueId(graph.values.iter().position(|v| v.slot == Some(slot)).expect("in the graph") as u32)
}

fn zeros(derived: &Differentiated, slot: SlotId) -> Tensor {
    let shape = derived.slots.get(slot).shape;
    Tensor::fixed(shape.dims(), vec![0.0; shape.elements()])
}

/// The loss as a function of one parameter, differentiated by its values alone.
fn slope(model: &Model, content: &[(ValueId, Array)], parameter: ValueId, masks: &mut Masks) -> Array {
    let loss = newest(&model.graph, model.slots.find("loss").expect("a loss"));
    let index = content.iter().position(|(v, _)| *v == parameter).expect("a slot");
    let mut content = content.to_vec();
    let at = content[index].1.clone();
    finite_difference(&at, |point| {
        content[index].1 = point.clone();
        run_f64(&model.graph, &content, masks)[loss.index()].as_ref().expect("a loss").data[0]
    })
}

#[test]
fn every_parameter_of_a_decoder() {
    let cases = [
        ("plain", PLAIN),
        ("two layers, bias", Options { layers: 2, bias: true, ..PLAIN }),
        ("split projections", Options { split_qkv: true, bias: true, ..PLAIN }),
        ("fused residual", Options { layers: 2, fused_residual: true, ..PLAIN }),
        ("QK-norm, window", Options { qk_norm: true, window: Some(2), ..PLAIN }),
        ("1 + w norms", Options { norm_offset: 1.0, qk_norm: true, ..PLAIN }),
        ("1 + w norms, fused residual", Options { norm_offset: 1.0, fused_residual: true, ..PLAIN }),
        ("layer norms", Options { layers: 2, layer_norm: true, gated: false, bias: true, ..PLAIN }),
        ("partial rotary", Options { rotated: 2, qk_norm: true, ..PLAIN }),
        ("GeGLU, soft cap", Options { activation: Activation::Gelu, softcap: Some(1.5), ..PLAIN }),
        ("plain MLP, tied", Options { gated: false, activation: Activation::GeluTanh, tied: true, ..PLAIN }),
        ("dropout", Options { embed_dropout: true, fused_residual: true, ..PLAIN }),
        ("score head", Options { layers: 2, score: true, ..PLAIN }),
        ("score head, fused residual, bias", Options { fused_residual: true, bias: true, score: true, ..PLAIN }),
        ("weighted tokens, tied", Options { weighted: true, tied: true, ..PLAIN }),
        ("classes", Options { layers: 2, score: true, classes: Some(3), ..PLAIN }),
        ("score head, plain MLP", Options { layers: 2, gated: false, score: true, ..PLAIN }),
    ];
    for (seed, (name, options)) in cases.into_iter().enumerate() {
        let model = decoder(options, 200 + seed as u64);
        check(name, &model, &model.all_weights());
    }
}

fn adapters(model: &Model) -> Vec<ValueId> {
    let is_adapter = |v: &ValueId| [".A", ".B"].iter().any(|end| model.graph.value(*v).name.ends_with(end));
    model.content.iter().map(|(v, _)| *v).filter(is_adapter).collect()
}

#[test]
fn adapters_over_a_frozen_base() {
    for (seed, split_qkv, score, rank) in
        [(300, false, false, 3), (301, true, false, 4), (302, false, true, 3), (303, true, true, 4)]
    {
        let lora = Some(Lora { rank, p: 0.3 });
        let model = decoder(Options { layers: 2, lora, split_qkv, fused_residual: split_qkv, score, ..PLAIN }, seed);
        let adapters = adapters(&model);
        assert_eq!(adapters.len(), 2 * 2 * if split_qkv { 6 } else { 4 });
        check("LoRA", &model, &adapters);
        let shares = |op: &Op| matches!(op, Op::GatedGrad(op) if op.last_share.is_some_and(|s| s.dropout.is_some()));
        let shared = derive(&model, &adapters).graph.nodes.iter().filter(|node| shares(&node.op)).count();
        assert_eq!(shared, if split_qkv { 2 } else { 0 }, "what down's adapters give is added by the activation");
    }
}

/// Whether other tokens' rows are computed behind the last attention shows in no loss, whatever is dropped of the rest.
#[test]
fn rows_that_are_not_scored_change_nothing() {
    let options = Options { layers: 2, lora: Some(Lora { rank: 3, p: 0.3 }), score: true, ..PLAIN };
    for harness in Suite::new().harnesses() {
        let losses = [false, true].map(|all_rows| {
            // The same seed gives both the same weights.
            let model = decoder(Options { all_rows, ..options }, 310);
            let mut masks = Masks { harness: &mut *harness, known: HashMap::new() };
            let arrays: Vec<(ValueId, Array)> = model.content.iter().map(|(v, t)| (*v, t.array(ACTIVE))).collect();
            let loss = newest(&model.graph, model.slots.find("loss").expect("a loss"));
            run_f64(&model.graph, &arrays, &mut masks)[loss.index()].as_ref().expect("a loss").data[0]
        });
        assert!((losses[0] - losses[1]).abs() < 1e-12 && losses[0] > 0.0, "{losses:?} on {}", harness.name());
    }
}

#[test]
fn some_parameters_alone() {
    let model = decoder(Options { layers: 2, bias: true, qk_norm: true, ..PLAIN }, 400);
    let sets: [&[&str]; 7] = [
        &["embedding"],
        &["head"],
        &["final_norm"],
        &["attention_norm.0", "down.1"],
        &["qkv_bias.0"],
        &["q_norm.0", "k_norm.0"],
        &["mlp_norm.1", "embedding"],
    ];
    for names in sets {
        let trainable: Vec<ValueId> = names.iter().map(|n| model.named(n)).collect();
        check(&format!("only {names:?}"), &model, &trainable);
    }
    let model = decoder(Options { layer_norm: true, ..PLAIN }, 403);
    for name in ["mlp_norm.0", "attention_norm.0_bias", "embedding"] {
        check(&format!("layer norms, only {name}"), &model, &[model.named(name)]);
    }
    let model = decoder(Options { score: true, ..PLAIN }, 402);
    for name in ["score", "final_norm"] {
        check(&format!("score head, only {name}"), &model, &[model.named(name)]);
    }
    let model = decoder(Options { score: true, classes: Some(4), ..PLAIN }, 403);
    for name in ["score", "final_norm"] {
        check(&format!("classes, only {name}"), &model, &[model.named(name)]);
    }
}

/// The two weights of a QK-norm learn together or not at all; anything else is refused, never ignored.
#[test]
fn one_weight_of_a_head_norm_alone() {
    let model = decoder(Options { qk_norm: true, ..PLAIN }, 401);
    for name in ["q_norm.0", "k_norm.0"] {
        let mut graph = model.graph.clone();
        let refused = differentiate(&mut graph, &mut model.slots.clone(), &[model.named(name)], DType::F32);
        assert!(matches!(refused, Err(GraphError::Invalid { op: "head_norm", .. })), "{name}: {refused:?}");
    }
}

/// Tokens' likelihoods carry no gradient: a loss that is made of them is refused, never ignored.
#[test]
fn a_loss_made_of_likelihoods() {
    let model = decoder(Options { weighted: true, ..PLAIN }, 404);
    let (mut graph, mut slots) = (model.graph.clone(), model.slots.clone());
    let first = graph.nodes.last().expect("the loss").clone();
    let (shape, storage, extent) = (Shape::new(&[3, 1]), DType::F32.into(), Extent::Fixed);
    let weight = Slot { name: "second".to_owned(), shape, storage, role: Role::Weight, extent, layer: None };
    let weight = slots.add(weight).expect("small");
    let weight = graph.slot(&slots, weight).expect("small");
    let [loss, nll] = first.outputs[..] else { panic!("the loss and the likelihoods") };
    let operands = [nll, weight, first.inputs[2], first.inputs[3], loss];
    graph.apply(VocabLoss::new(None, 1), &operands, "", Class::NONE).expect("a valid operator");
    let refused = differentiate(&mut graph, &mut slots, &[model.named("head")], DType::F32);
    assert!(matches!(refused, Err(GraphError::NotDifferentiable { op: "vocab_loss", .. })), "{refused:?}");
}

#[test]
fn frozen_parameters_get_no_gradient() {
    let model = decoder(Options { layers: 2, lora: Some(Lora { rank: 2, p: 0.1 }), ..PLAIN }, 500);
    let derived = derive(&model, &adapters(&model));
    let gradient_slots: Vec<&str> =
        derived.slots.iter().map(|(_, s)| s.name.as_str()).filter(|n| n.starts_with("grad:")).collect();
    assert_eq!(gradient_slots.len(), adapters(&model).len());
    assert!(gradient_slots.iter().all(|n| n.ends_with(".A") || n.ends_with(".B")));
    let written: Vec<_> = derived
        .graph
        .nodes
        .iter()
        .filter(|n| n.phase == Phase::Backward)
        .flat_map(|n| n.outputs.iter().filter_map(|&v| derived.graph.value(v).slot))
        .collect();
    assert!(written.iter().all(|slot| derived.gradients.contains(slot)), "a backward node writes another slot");
    assert_eq!(written.len(), derived.gradients.len(), "one product for each adapter matrix");
}

/// The backward pass ends at the first layer that learns, and keeps no input of a frozen product.
#[test]
fn nothing_is_computed_or_kept_for_frozen_parts() {
    let model = decoder(PLAIN, 501);
    let backward_of = |trainable: &[ValueId]| {
        let derived = derive(&model, trainable);
        derived.graph.nodes.into_iter().filter(|n| n.phase == Phase::Backward).collect::<Vec<_>>()
    };
    assert_eq!(backward_of(&[model.named("head")]).len(), 0, "the loss makes the head's gradient itself");
    let ops: Vec<Op> = backward_of(&[model.named("final_norm")]).into_iter().map(|n| n.op).collect();
    assert!(matches!(ops[..], [Op::RmsNormGrad(_)]), "{ops:?}");

    // The input of the gate and up products: the output of the second norm.
    let gate_up = model.named("gate_up.0");
    let normed = model.graph.nodes.iter().find(|n| n.inputs.get(1) == Some(&gate_up)).expect("a product").inputs[0];
    let reads = |trainable: &[ValueId]| backward_of(trainable).iter().any(|n| n.inputs.contains(&normed));
    assert!(reads(&[gate_up]));
    assert!(!reads(&[model.named("qkv.0")]), "a frozen product's input is kept");
}

/// Two runs of the graph add up, as two micro-batches of an update do.
#[test]
fn gradients_accumulate_over_micro_steps() {
    let model = decoder(Options { bias: true, tied: true, ..PLAIN }, 600);
    let trainable = model.all_weights();
    let derived = derive(&model, &trainable);
    for harness in Suite::new().harnesses() {
        let mut gradients: Vec<Tensor> = derived.gradients.iter().map(|&slot| zeros(&derived, slot)).collect();
        let mut after = Vec::new();
        for _ in 0..2 {
            let mut content = model.content.clone();
            let slots = derived.gradients.iter().map(|&slot| first_version(&derived.graph, slot));
            content.extend(slots.zip(gradients));
            let values = walk(&derived.graph, content, |node, inputs| {
                let inputs: Vec<Tensor> = inputs.iter().map(|t| (*t).clone()).collect();
                harness.run(&node.op, &inputs, ACTIVE, &Placement::default())
            });
            let gradient = |&slot: &SlotId| values[newest(&derived.graph, slot).index()].clone().expect("a gradient");
            gradients = derived.gradients.iter().map(gradient).collect();
            after.push(gradients.clone());
        }
        for (once, twice) in after[0].iter().zip(&after[1]) {
            let doubled = once.array(ACTIVE).map(|g| 2.0 * g);
            compare(&twice.array(ACTIVE), &doubled, F32_TOLERANCE).expect("twice the gradient");
        }
    }
}

/// The activation's gradient, as wide as gate or up, waits for nothing else; what is run is the same.
#[test]
fn gradients_are_made_where_they_are_read() {
    let lora = Some(Lora { rank: 4, p: 0.3 });
    let model = decoder(Options { layers: 2, lora, split_qkv: true, fused_residual: true, ..PLAIN }, 304);
    let trainable = adapters(&model);
    let [emitted, sunk] =
        [derive_as_emitted(&model, &trainable), derive(&model, &trainable)].map(|derived| derived.graph);
    let sorted = |graph: &Graph| {
        let mut nodes: Vec<String> = graph.nodes.iter().map(|node| format!("{node:?}")).collect();
        nodes.sort();
        nodes
    };
    assert_eq!(sorted(&emitted), sorted(&sunk));

    // How long before an activation's own gradient that of its result is made.
    let waits = |graph: &Graph| -> Vec<usize> {
        let activations = graph.nodes.iter().enumerate().filter(|(_, node)| matches!(node.op, Op::GatedGrad(_)));
        let made = |at: usize, node: &Node| {
            graph.nodes[..at].iter().rposition(|other| other.outputs.contains(&node.inputs[1])).expect("made before")
        };
        activations.map(|(at, node)| at - made(at, node)).collect()
    };
    let (before, after) = (waits(&emitted), waits(&sunk));
    assert!(!after.is_empty() && after.iter().all(|&wait| wait == 1), "{before:?}, {after:?}");
    assert!(before.iter().any(|&wait| wait > 1), "{before:?}");
}
