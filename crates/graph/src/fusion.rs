//! Fusions: each a rewrite of one pattern of the graph into fewer operators that compute the same without storing what
//! lies between them. Models are wired from plain operators and know nothing of these.
//!
//! Around the gated activation, whose operands are the widest of a layer, adapters of small rank are added in registers
//! where it reads: to gate and up going forward, and to the gradient that comes back from down.

use std::collections::{BTreeMap, BTreeSet};

use crate::ops::{AdapterShare, AdapterUp, Dest, Gated, GatedGrad, Linear, LinearKind, added_inside};
use crate::{Graph, Node, NodeId, Op, Role, ValueId};

/// What rewrites found: nodes with something else in their place, and nodes that are no longer needed.
#[derive(Default)]
struct Rewrites {
    changed: BTreeMap<usize, Node>,
    removed: BTreeSet<usize>,
}

/// Who makes each value, and how often it is read.
struct Uses {
    producers: Vec<Option<NodeId>>,
    reads: Vec<usize>,
}

impl Uses {
    fn of(graph: &Graph) -> Self {
        let mut reads = vec![0; graph.values.len()];
        let read = graph.nodes.iter().flat_map(|node| &node.inputs).chain(&graph.results);
        read.for_each(|value| reads[value.index()] += 1);
        Self { producers: graph.producers(), reads }
    }

    /// The node that makes a value nobody else reads.
    fn sole_producer(&self, value: ValueId) -> Option<usize> {
        self.producers[value.index()].map(|node| node.0 as usize).filter(|_| self.reads[value.index()] == 1)
    }
}

/// Fusions of the forward pass; before it is differentiated.
///
/// `AdapterUp → Linear onto it → Gated` becomes `Linear → Gated with adapters`.
pub fn fuse_forward(graph: &mut Graph) {
    apply(graph, |graph, uses, index, found| {
        let node = &graph.nodes[index];
        let Op::Gated(gated @ Gated { adapters: None, .. }) = &node.op else { return None };
        let product_at = uses.sole_producer(node.inputs[0])?;
        let product = &graph.nodes[product_at];
        let Op::Linear(linear) = &product.op else { return None };
        let plain = linear.kind == LinearKind::Forward && linear.dest == Dest::Accumulate && linear.cols.is_none();
        let onto = linear.dest_input().filter(|_| plain)?;
        let adapted_at = uses.sole_producer(product.inputs[onto])?;
        let Op::AdapterUp(AdapterUp(adapters)) = &graph.nodes[adapted_at].op else { return None };
        let operands = &graph.nodes[adapted_at].inputs;
        if !added_inside(graph.value(operands[1]).shape.cols()) {
            return None;
        }
        let mut inputs = product.inputs.clone();
        inputs.remove(onto);
        let fresh = Linear { dest: Dest::Fresh, ..linear.clone() };
        found.changed.insert(product_at, Node { op: fresh.into(), inputs, ..product.clone() });
        let gated = Gated { adapters: Some(adapters.clone()), ..gated.clone() };
        let inputs = [&node.inputs[..1], operands].concat();
        found.changed.insert(index, Node { op: gated.into(), inputs, ..node.clone() });
        found.removed.insert(adapted_at);
        Some(())
    });
}

/// Fusions of the backward pass; after the forward pass was differentiated.
///
/// `Linear input gradient of an adapter's first matrix, added to dy → GatedGrad` becomes `GatedGrad with that share`.
pub fn fuse_backward(graph: &mut Graph) {
    apply(graph, |graph, uses, index, found| {
        let node = &graph.nodes[index];
        let Op::GatedGrad(grad @ GatedGrad { last_share: None, .. }) = &node.op else { return None };
        let share_at = uses.sole_producer(node.inputs[1])?;
        let share = &graph.nodes[share_at];
        let Op::Linear(linear) = &share.op else { return None };
        let plain = linear.kind == LinearKind::InputGrad && linear.dest == Dest::Accumulate && linear.cols.is_none();
        let onto = linear.dest_input().filter(|_| plain)?;
        let (rank, matrix) = (graph.value(share.inputs[0]).shape.cols(), graph.value(share.inputs[1]));
        if !added_inside(rank) || matrix.role != Role::Adapter {
            return None;
        }
        let last_share = Some(AdapterShare { alpha: linear.alpha, dropout: linear.dropout });
        let mut inputs = node.inputs.clone();
        inputs[1] = share.inputs[onto];
        inputs.extend(&share.inputs[..2]);
        inputs.extend(linear.dropout_inputs().iter().flat_map(|&at| [share.inputs[at], share.inputs[at + 1]]));
        let grad = GatedGrad { last_share, ..grad.clone() };
        found.changed.insert(index, Node { op: grad.into(), inputs, ..node.clone() });
        found.removed.insert(share_at);
        Some(())
    });
}

/// Looks for a pattern at every node and puts what was found in place.
fn apply(graph: &mut Graph, find: impl Fn(&Graph, &Uses, usize, &mut Rewrites) -> Option<()>) {
    let uses = Uses::of(graph);
    let mut found = Rewrites::default();
    for index in 0..graph.nodes.len() {
        find(graph, &uses, index, &mut found);
    }
    // Values that nobody makes any more stay in the list, so that the others keep their ids.
    let nodes = std::mem::take(&mut graph.nodes).into_iter().enumerate();
    let left = nodes.filter(|(index, _)| !found.removed.contains(index));
    graph.nodes = left.map(|(index, node)| found.changed.remove(&index).unwrap_or(node)).collect();
}
