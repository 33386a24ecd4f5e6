//! Executes a whole graph, node after node, every value in a place of its own.

use plimsoll_graph::{Graph, Node, ValueId};

/// Runs all nodes. `values` holds what was there before, by value; gives every value that was made.
pub fn walk<T>(
    graph: &Graph,
    values: impl IntoIterator<Item = (ValueId, T)>,
    mut run: impl FnMut(&Node, &[&T]) -> Vec<T>,
) -> Vec<Option<T>> {
    let mut made: Vec<Option<T>> = graph.values.iter().map(|_| None).collect();
    for (id, value) in values {
        made[id.index()] = Some(value);
    }
    for node in &graph.nodes {
        let missing =
            |id: &ValueId| -> ! { panic!("{:?} reads {} before it is written", node.op, graph.value(*id).name) };
        let inputs: Vec<&T> =
            node.inputs.iter().map(|id| made[id.index()].as_ref().unwrap_or_else(|| missing(id))).collect();
        let outputs = run(node, &inputs);
        assert_eq!(outputs.len(), node.outputs.len(), "outputs of {:?}", node.op);
        for (id, output) in node.outputs.iter().zip(outputs) {
            made[id.index()] = Some(output);
        }
    }
    made
}
