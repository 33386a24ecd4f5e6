//! When backward operators run. Rules emit a value's gradient as they visit its reader, often long before anybody reads
//! that gradient; meanwhile whatever else the visit needs is rebuilt beside it. The same operators on the same values in
//! another order: no bits change.

use crate::{Alias, Graph, Node, OpRule, Phase, ValueId};

/// Moves each backward operator to where its result is first read, if the result is larger than what must live on for that.
pub fn sink_gradients(graph: &mut Graph) {
    for index in (0..graph.nodes.len()).rev() {
        if let Some(reader) = later(graph, index) {
            graph.nodes[index..reader].rotate_left(1);
        }
    }
}

/// The first reader of the result of a node that is better run right before it.
fn later(graph: &Graph, index: usize) -> Option<usize> {
    let node = &graph.nodes[index];
    let &[output] = node.outputs.as_slice() else { return None };
    if node.phase != Phase::Backward || node.inputs.is_empty() || graph.value(output).slot.is_some() {
        return None;
    }
    let behind = &graph.nodes[index + 1..];
    let reader = index + 1 + behind.iter().position(|reader| reader.inputs.contains(&output))?;
    let between = &graph.nodes[index + 1..reader];
    if between.is_empty() || between.iter().any(|other| node.inputs.iter().any(|&input| replaces(other, input))) {
        return None;
    }
    let ends_before = |input: &ValueId| !graph.nodes[reader..].iter().any(|other| other.inputs.contains(input));
    let live_on = node.inputs.iter().filter(|input| graph.value(**input).slot.is_none() && ends_before(input));
    let longer: usize = live_on.map(|input| graph.value(*input).bytes()).sum();
    (graph.value(output).bytes() > longer).then_some(reader)
}

/// Whether a value's place is taken by something else.
fn replaces(node: &Node, value: ValueId) -> bool {
    let takes = |alias: &Alias| matches!(alias, Alias::Must { input, .. } if node.inputs[*input] == value);
    node.op.aliases().iter().any(takes)
}
