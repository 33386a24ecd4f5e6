//! Which share of a gradient is written first. Rules emit the shares of an input's gradient as they come back to its
//! readers: the product with a frozen weight, then that of its adapter, which would read and write the whole gradient to
//! add little to it. The big product adds onto what is there at next to no cost, so it comes last, as going forward.

use crate::fusion::Uses;
use crate::ops::{Dest, Linear, LinearKind};
use crate::{Alias, Graph, Node, Op, OpRule, Role, Value, ValueId};

/// `big product → … → adapter's product onto it` becomes `… → adapter's product → big product onto it`. A product that adds
/// onto something already stays where it is: there would be as many sums. After fusions, which take shares elsewhere.
pub fn add_onto_adapters(graph: &mut Graph) {
    let uses = Uses::of(graph);
    let mut places: Vec<(usize, bool)> = (0..graph.nodes.len()).map(|index| (index, false)).collect();
    for share_at in 0..graph.nodes.len() {
        if let Some((product_at, [share, product])) = exchanged(graph, &uses, share_at) {
            graph.nodes[share_at] = share;
            graph.nodes[product_at] = product;
            places[product_at] = (share_at, true);
        }
    }
    let mut nodes: Vec<_> = places.into_iter().zip(std::mem::take(&mut graph.nodes)).collect();
    nodes.sort_unstable_by_key(|(place, _)| *place);
    graph.nodes = nodes.into_iter().map(|(_, node)| node).collect();
}

/// Where the big product is that an adapter's product is added onto, and the two the other way round.
fn exchanged(graph: &Graph, uses: &Uses, share_at: usize) -> Option<(usize, [Node; 2])> {
    let (share, of_share) = input_gradient(graph, share_at, Dest::Accumulate)?;
    let onto = of_share.dest_input()?;
    let between = share.inputs[onto];
    let product_at = uses.sole_producer(between)?;
    let (product, of_product) = input_gradient(graph, product_at, Dest::Fresh)?;
    let is_adapter = |node: &Node| graph.value(node.inputs[1]).role == Role::Adapter;
    let pair = is_adapter(share) && !is_adapter(product) && of_product.dropout.is_none();
    let alike = of_same_storage(graph.value(between), graph.value(share.outputs[0]));
    if !(pair && alike) || is_replaced(&graph.nodes[product_at + 1..=share_at], &product.inputs) {
        return None;
    }
    let mut inputs = share.inputs.clone();
    inputs.remove(onto);
    let op = Linear { dest: Dest::Fresh, ..of_share.clone() }.into();
    let first = Node { op, inputs, outputs: product.outputs.clone(), ..share.clone() };
    let op = Linear { dest: Dest::Accumulate, ..of_product.clone() }.into();
    let inputs = [&product.inputs[..], &[between]].concat();
    let second = Node { op, inputs, outputs: share.outputs.clone(), ..product.clone() };
    Some((product_at, [first, second]))
}

fn input_gradient(graph: &Graph, at: usize, dest: Dest) -> Option<(&Node, &Linear)> {
    let node = &graph.nodes[at];
    match &node.op {
        Op::Linear(op) if op.kind == LinearKind::InputGrad && op.dest == dest => Some((node, op)),
        _ => None,
    }
}

fn of_same_storage(a: &Value, b: &Value) -> bool {
    (a.shape, &a.storage, a.extent) == (b.shape, &b.storage, b.extent)
}

/// Whether something else is put in the place of one of these values.
fn is_replaced(nodes: &[Node], values: &[ValueId]) -> bool {
    let replaces = |node: &Node, alias: Alias| match alias {
        Alias::Must { input, .. } => values.contains(&node.inputs[input]),
        Alias::May { .. } => false,
    };
    nodes.iter().any(|node| node.op.aliases().into_iter().any(|alias| replaces(node, alias)))
}
