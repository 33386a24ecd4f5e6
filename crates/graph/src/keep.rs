//! What of the forward pass is kept in eight bits. Beside a frozen base, the inputs of projections outlive the forward pass
//! only for the gradients of adapters' first matrices: these may be made from rounded rows, and nothing else changes by it.

use std::collections::{HashMap, HashSet};

use crate::ops::{Linear, LinearKind, RoundRows, WidenRows};
use crate::{Class, Graph, GraphError, Node, Op, OpRule, Phase, Role, Shape, Value, ValueId};

/// Rounds every forward value that the backward pass reads for adapters' gradients alone, and widens it again right before
/// they are made. After the backward pass is there and its operators are in order. A value that is rebuilt instead of kept
/// is rounded as well, so that what is kept does not show in the bits.
pub fn keep_rounded(graph: &mut Graph) -> Result<(), GraphError> {
    let rounded = for_adapters_alone(graph);
    let mut codes: HashMap<ValueId, ValueId> = HashMap::new();
    let mut widened: HashMap<ValueId, (Option<u32>, ValueId)> = HashMap::new();
    for mut node in std::mem::take(&mut graph.nodes) {
        if node.phase == Phase::Backward {
            for input in node.inputs.iter_mut().filter(|input| rounded.contains(input)) {
                // Where several layers read one value, it is not widened from the first of them to the last.
                *input = match widened.get(input) {
                    Some(&(layer, wide)) if layer == node.layer => wide,
                    _ => {
                        let at = (Phase::Backward, node.layer);
                        let wide = append(graph, WidenRows.into(), codes[input], Class::NONE, at)?;
                        widened.insert(*input, (node.layer, wide));
                        wide
                    }
                };
            }
        }
        let made: Vec<ValueId> = node.outputs.iter().copied().filter(|output| rounded.contains(output)).collect();
        let at = (node.phase, node.layer);
        graph.nodes.push(node);
        for x in made {
            // Of the same class: whoever drops the value drops its codes.
            let class = graph.value(x).class;
            codes.insert(x, append(graph, RoundRows.into(), x, class, at)?);
        }
    }
    Ok(())
}

/// Adds an operator behind the nodes there are.
fn append(
    graph: &mut Graph,
    op: Op,
    input: ValueId,
    class: Class,
    (phase, layer): (Phase, Option<u32>),
) -> Result<ValueId, GraphError> {
    let source = graph.value(input);
    let [described] = op.outputs(&[source])?.try_into().expect("one output");
    let value = Value { name: source.name.clone(), layer: source.layer, class, ..described };
    let output = graph.add_value(value)?;
    graph.nodes.push(Node { op, inputs: vec![input], outputs: vec![output], phase, layer });
    Ok(output)
}

/// Forward values whose readers in the backward pass all make gradients of adapters' first matrices.
fn for_adapters_alone(graph: &Graph) -> HashSet<ValueId> {
    let mut first_matrices: HashSet<(ValueId, Shape)> = HashSet::new();
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Forward) {
        if let Op::Linear(Linear { kind: LinearKind::Forward, .. }) = &node.op {
            let weight = graph.value(node.inputs[1]);
            if weight.role == Role::Adapter {
                first_matrices.insert((node.inputs[0], weight.shape));
            }
        }
    }
    let makes_gradient = |node: &Node, x: ValueId| {
        let [dy, read, gradient, ..] = node.inputs[..] else { return false };
        let product = matches!(&node.op, Op::Linear(Linear { kind: LinearKind::WeightGrad, .. }));
        product && read == x && dy != x && first_matrices.contains(&(x, graph.value(gradient).shape))
    };
    let mut found: HashSet<ValueId> = first_matrices.iter().map(|(x, _)| *x).collect();
    found.retain(|x| graph.value(*x).slot.is_none() && !graph.results.contains(x));
    let mut read = HashSet::new();
    for node in graph.nodes.iter().filter(|node| node.phase == Phase::Backward) {
        for &x in &node.inputs {
            read.insert(x);
            if !makes_gradient(node, x) {
                found.remove(&x);
            }
        }
    }
    found.retain(|x| read.contains(x) && is_smaller_rounded(graph.value(*x)));
    found
}

/// A scale takes more than it saves where rows are very short.
fn is_smaller_rounded(x: &Value) -> bool {
    let rounded = RoundRows.outputs(&[x]);
    rounded.is_ok_and(|rounded| rounded[0].bytes() < x.bytes())
}
