//! When backward operators run. Rules emit a value's gradient as they visit its reader, often long before anybody reads
//! that gradient; meanwhile whatever else the visit needs is rebuilt beside it. The same operators on the same values in
//! another order: no bits change.

use crate::{Alias, Graph, Node, OpRule, Phase, ValueId};

/// Moves each backward operator to where its result is first read, if the result is larger than what must live on for that.
pub fn sink_gradients(graph: &mut Graph) {
    let mut order = Order::of(graph);
    for node in (0..graph.nodes.len()).rev() {
        if let Some(reader) = order.later(graph, node) {
            order.put_before(node, reader);
        }
    }
    let mut nodes: Vec<(usize, Node)> = order.places.into_iter().zip(std::mem::take(&mut graph.nodes)).collect();
    nodes.sort_unstable_by_key(|(place, _)| *place);
    graph.nodes = nodes.into_iter().map(|(_, node)| node).collect();
}

/// The order in which nodes run.
struct Order {
    /// Nodes, first to run first.
    nodes: Vec<usize>,
    /// Where each node is in that.
    places: Vec<usize>,
    /// The nodes that read each value, and those that put something else in its place.
    readers: Vec<Vec<usize>>,
    replacers: Vec<Vec<usize>>,
}

impl Order {
    fn of(graph: &Graph) -> Self {
        let nodes: Vec<usize> = (0..graph.nodes.len()).collect();
        let [mut readers, mut replacers] = [(); 2].map(|()| vec![Vec::new(); graph.values.len()]);
        for (index, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|input| readers[input.index()].push(index));
            for alias in node.op.aliases() {
                if let Alias::Must { input, .. } = alias {
                    replacers[node.inputs[input].index()].push(index);
                }
            }
        }
        Self { places: nodes.clone(), nodes, readers, replacers }
    }

    /// The first reader of the result of a node that is better run right before it.
    fn later(&self, graph: &Graph, index: usize) -> Option<usize> {
        let node = &graph.nodes[index];
        let &[output] = node.outputs.as_slice() else { return None };
        if node.phase != Phase::Backward || node.inputs.is_empty() || graph.value(output).slot.is_some() {
            return None;
        }
        let (place, reader) = (self.places[index], self.places_of(&self.readers, output).min()?);
        let between = place + 1..reader;
        let replaced = |input: &ValueId| self.places_of(&self.replacers, *input).any(|place| between.contains(&place));
        if between.is_empty() || node.inputs.iter().any(replaced) {
            return None;
        }
        let ends_before = |input: &ValueId| self.places_of(&self.readers, *input).all(|place| place < reader);
        let live_on = node.inputs.iter().filter(|input| graph.value(**input).slot.is_none() && ends_before(input));
        let longer: usize = live_on.map(|input| graph.value(*input).bytes()).sum();
        (graph.value(output).bytes() > longer).then_some(self.nodes[reader])
    }

    fn places_of(&self, nodes: &[Vec<usize>], value: ValueId) -> impl Iterator<Item = usize> {
        nodes[value.index()].iter().map(|&node| self.places[node])
    }

    fn put_before(&mut self, node: usize, reader: usize) {
        let moved = self.places[node]..self.places[reader];
        self.nodes[moved.clone()].rotate_left(1);
        moved.for_each(|place| self.places[self.nodes[place]] = place);
    }
}
