//! Dropping values after the forward pass and rebuilding them before the backward pass needs them.
//!
//! The unit is a class of values in the first `k` layers: the last layers' values are needed again
//! soonest, so keeping those costs least. A dropped value is rebuilt by the cheapest chain from what
//! was kept: an operator's own shortcut if it has one, else the operator again, its inputs first.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use plimsoll_graph::{Class, Graph, Node, NodeId, OpRule, Phase, ValueId};

/// In how many of the layers that have it, counted from the first, each class is dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drops(pub BTreeMap<Class, usize>);

impl Drops {
    pub fn is_empty(&self) -> bool {
        self.0.values().all(|&k| k == 0)
    }
}

/// Classes that the backward pass reads, with the layers that have them, in order.
pub fn droppable(graph: &Graph) -> BTreeMap<Class, BTreeSet<Option<u32>>> {
    let mut classes: BTreeMap<Class, BTreeSet<Option<u32>>> = BTreeMap::new();
    for id in kept(graph) {
        let value = graph.value(id);
        if value.class != Class::NONE {
            classes.entry(value.class).or_default().insert(value.layer);
        }
    }
    classes
}

/// Forward values that backward nodes read.
fn kept(graph: &Graph) -> Vec<ValueId> {
    let mut made = vec![false; graph.values.len()];
    for node in graph.nodes.iter().filter(|n| n.phase == Phase::Forward) {
        for output in &node.outputs {
            made[output.index()] = true;
        }
    }
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for node in graph.nodes.iter().filter(|n| n.phase == Phase::Backward) {
        for &input in &node.inputs {
            if made[input.index()] && graph.value(input).slot.is_none() && seen.insert(input) {
                kept.push(input);
            }
        }
    }
    kept
}

/// The graph with the given classes dropped and rebuilt.
pub fn recompute(graph: &Graph, drops: &Drops) -> Graph {
    if drops.is_empty() {
        return graph.clone();
    }
    let classes = droppable(graph);
    let dropped = |class: Class, layer: Option<u32>| {
        let count = drops.0.get(&class).copied().unwrap_or(0);
        classes.get(&class).is_some_and(|layers| layers.iter().take(count).any(|&l| l == layer))
    };
    let available: HashSet<ValueId> =
        kept(graph).into_iter().filter(|&id| !dropped(graph.value(id).class, graph.value(id).layer)).collect();
    let mut pass = Rebuild {
        source: graph,
        graph: graph.clone(),
        producers: graph.producers(),
        available,
        rebuilt: HashMap::new(),
    };
    pass.graph.nodes.clear();
    for node in &graph.nodes {
        let mut node = node.clone();
        if node.phase == Phase::Backward {
            for input in &mut node.inputs {
                *input = pass.obtain(*input);
            }
        }
        pass.graph.nodes.push(node);
    }
    pass.graph
}

struct Rebuild<'g> {
    source: &'g Graph,
    graph: Graph,
    producers: Vec<Option<NodeId>>,
    /// Forward values that stay in memory until the backward pass.
    available: HashSet<ValueId>,
    rebuilt: HashMap<ValueId, ValueId>,
}

impl Rebuild<'_> {
    /// The value under which the backward pass finds `id`, rebuilding it on the spot if need be.
    fn obtain(&mut self, id: ValueId) -> ValueId {
        if let Some(&rebuilt) = self.rebuilt.get(&id) {
            return rebuilt;
        }
        let Some(producer) = self.producers[id.index()] else { return id };
        let node = &self.source.nodes[producer.0 as usize];
        if node.phase != Phase::Forward || self.source.value(id).slot.is_some() || self.available.contains(&id) {
            return id;
        }
        if self.begins_layer(id) {
            // Keeping what a layer starts from is cheaper than running the layers before it again.
            self.available.insert(id);
            return id;
        }
        self.rebuild(id, &node.clone());
        self.rebuilt[&id]
    }

    /// Is this the value that carries the earlier layers' work into its own?
    fn begins_layer(&self, id: ValueId) -> bool {
        let Some(producer) = self.producers[id.index()] else { return false };
        let node = &self.source.nodes[producer.0 as usize];
        let mut inputs = node.inputs.iter().map(|&v| self.source.value(v));
        self.source.value(id).class == Class::NONE && inputs.any(|v| v.slot.is_none() && v.layer != node.layer)
    }

    fn rebuild(&mut self, id: ValueId, node: &Node) {
        let position = node.outputs.iter().position(|&o| o == id).expect("the producer makes it");
        let shortcut = node.op.rebuild(node, position).filter(|(_, inputs)| self.at_hand(inputs));
        // A shortcut makes the same outputs less the ones it starts from.
        let (op, inputs, outputs) = match shortcut {
            Some((op, inputs)) => {
                let outputs: Vec<ValueId> = node.outputs.iter().copied().filter(|o| !inputs.contains(o)).collect();
                (op, inputs, outputs)
            }
            None => (node.op.clone(), node.inputs.clone(), node.outputs.clone()),
        };
        let inputs: Vec<ValueId> = inputs.into_iter().map(|v| self.obtain(v)).collect();
        let clones: Vec<ValueId> = outputs.iter().map(|&o| self.clone_value(o)).collect();
        self.graph.nodes.push(Node { op, inputs, outputs: clones, phase: Phase::Recompute, layer: node.layer });
    }

    fn at_hand(&self, inputs: &[ValueId]) -> bool {
        inputs.iter().all(|v| {
            self.available.contains(v)
                || self.begins_layer(*v)
                || self.rebuilt.contains_key(v)
                || self.producers[v.index()].is_none()
                || self.source.value(*v).slot.is_some()
        })
    }

    fn clone_value(&mut self, original: ValueId) -> ValueId {
        let value = self.source.value(original).clone();
        // As large as the original, which was checked.
        self.graph.values.push(value);
        let clone = ValueId(self.graph.values.len() as u32 - 1);
        if !self.available.contains(&original) {
            self.rebuilt.insert(original, clone);
        }
        clone
    }
}
