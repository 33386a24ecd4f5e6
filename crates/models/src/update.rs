//! What becomes of finished gradients: one update behind all micro-steps, or one for each parameter as soon as its gradient
//! is complete.

use std::ops::Range;

use plimsoll_graph::ops::{GlobalNorm, SquareSum, TotalNorm, Zeros};
use plimsoll_graph::{
    Class, DType, Extent, Graph, GraphError, Matrix, Node, Op, Phase, Role, Shape, Slot, SlotId, SlotTable,
    UpdateOperands, ValueId,
};

use crate::{Inputs, ModelError, Parameter, Recipe, Trained};

/// Memory for what each parameter's optimizer keeps.
pub(crate) fn training_slots(
    slots: &mut SlotTable,
    recipe: &Recipe,
    parameters: &[&Parameter],
    grads: impl Iterator<Item = Option<SlotId>>,
) -> Result<Vec<Trained>, GraphError> {
    parameters.iter().zip(grads).map(|(parameter, grad)| slots_of(slots, recipe, parameter, grad)).collect()
}

fn slots_of(
    slots: &mut SlotTable,
    recipe: &Recipe,
    parameter: &Parameter,
    grad: Option<SlotId>,
) -> Result<Trained, GraphError> {
    let layer = slots.get(parameter.slot).layer;
    let mut add = |kind: &str, shape, storage| {
        let (name, role) = (format!("{kind}:{}", parameter.name), Role::OptimizerState);
        slots.add(Slot { name, shape, storage, role, extent: Extent::Fixed, layer })
    };
    let states = recipe.groups[parameter.group].optimizer.states(parameter.shape, &matrices(parameter));
    let states = states.into_iter().map(|state| add(state.name, state.shape, state.storage));
    let states = states.collect::<Result<_, _>>()?;
    let master = match recipe.master {
        true => Some(add("master", parameter.shape, DType::F32.into())?),
        false => None,
    };
    Ok(Trained { parameter: parameter.name.clone(), grad, states, master })
}

fn matrices(parameter: &Parameter) -> Vec<Matrix> {
    parameter.tensors.iter().map(|t| Matrix { first_row: t.first_row, shape: t.shape }).collect()
}

/// One optimizer step.
fn step(
    graph: &mut Graph,
    slots: &SlotTable,
    recipe: &Recipe,
    inputs: &Inputs,
    (parameter, trained): (&Parameter, &Trained),
    (gradient, clip): (ValueId, ValueId),
) -> Result<(), GraphError> {
    graph.set_layer(slots.get(parameter.slot).layer);
    let matrices = matrices(parameter);
    let operands = UpdateOperands {
        parameter: graph.slot(slots, parameter.slot)?,
        gradient,
        states: trained.states.iter().map(|&s| graph.slot(slots, s)).collect::<Result<_, _>>()?,
        hyper: graph.slot(slots, inputs.hyper[parameter.group])?,
        clip,
        master: trained.master.map(|m| graph.slot(slots, m)).transpose()?,
        matrices: &matrices,
    };
    recipe.groups[parameter.group].optimizer.update(graph, &operands)
}

/// The update: the norm over all gradients, then one optimizer step per parameter.
pub(crate) fn update(
    slots: &SlotTable,
    recipe: &Recipe,
    inputs: &Inputs,
    parameters: &[&Parameter],
    states: &[Trained],
) -> Result<Graph, ModelError> {
    let mut graph = Graph::new();
    graph.set_phase(Phase::Update);
    let grads = states.iter().filter_map(|state| state.grad).map(|grad| graph.slot(slots, grad));
    let grads = grads.collect::<Result<Vec<ValueId>, _>>()?;
    let mut operands = vec![graph.slot(slots, inputs.clip)?];
    operands.extend(&grads);
    if let Some(unscale) = inputs.unscale {
        operands.push(graph.slot(slots, unscale)?);
    }
    let norm = GlobalNorm { max_norm: recipe.clip, scaled: inputs.unscale.is_some() };
    let clip = graph.apply(norm, &operands, "clip", Class::NONE)?;
    for ((parameter, trained), grad) in parameters.iter().zip(states).zip(grads) {
        step(&mut graph, slots, recipe, inputs, (parameter, trained), (grad, clip))?;
    }
    Ok(graph)
}

/// Puts each parameter's step where its gradient is complete and nobody reads the parameter any more. `gradients` are the
/// complete ones. Each step is guarded by the gradients up to its own; the norm over all of them is there at the end.
pub(crate) fn update_in_backward(
    graph: &mut Graph,
    slots: &SlotTable,
    recipe: &Recipe,
    inputs: &Inputs,
    parameters: &[&Parameter],
    states: &[Trained],
    gradients: &[ValueId],
) -> Result<(), ModelError> {
    let backward = graph.nodes.len();
    let mut order = Order::new(graph);
    let mut done = Vec::with_capacity(parameters.len());
    for (index, (parameter, &gradient)) in parameters.iter().zip(gradients).enumerate() {
        let value = graph.slot(slots, parameter.slot)?;
        let last = graph.nodes.iter().rposition(|n| n.inputs.contains(&value) || n.outputs.contains(&gradient));
        done.push((last.unwrap_or(0), index));
    }
    done.sort_unstable();
    graph.set_phase(Phase::Update);
    graph.set_layer(None);
    let zeros = |shape: &[usize], dtype| Zeros { shape: Shape::new(shape), dtype, role: Role::Workspace };
    let mut guard = graph.apply(zeros(&[2], DType::F32), &[], "guard", Class::NONE)?;
    let mut sums = graph.apply(zeros(&[parameters.len()], DType::F64), &[], "square_sums", Class::NONE)?;
    let mut begun = backward;
    for (last, index) in done {
        graph.set_layer(slots.get(parameters[index].slot).layer);
        let names = [("guard", Class::NONE), ("square_sums", Class::NONE)];
        let both = graph.apply_all(SquareSum { index }, &[guard, sums, gradients[index]], &names)?;
        [guard, sums] = [both[0], both[1]];
        let operands = ((parameters[index], &states[index]), (gradients[index], guard));
        step(graph, slots, recipe, inputs, operands.0, operands.1)?;
        order.behind(last, begun..graph.nodes.len());
        begun = graph.nodes.len();
    }
    graph.set_layer(None);
    let clip = graph.slot(slots, inputs.clip)?;
    graph.apply(TotalNorm, &[clip, sums], "clip", Class::NONE)?;
    order.behind(backward - 1, begun..graph.nodes.len());
    order.apply(graph);
    Ok(())
}

/// Where the nodes of a graph go: those of the backward pass as they are, gradients' zeros in front of whoever adds to them
/// first, updates behind a node.
struct Order {
    /// Of each node: whom it goes by, whether before or behind it, and in which order among others there.
    keys: Vec<(usize, i8, usize)>,
}

impl Order {
    fn new(graph: &Graph) -> Self {
        let of_node = |(index, node): (usize, &Node)| match &node.op {
            Op::Zeros(_) => first_reader(graph, node).map_or((index, 0, 0), |reader| (reader, -1, index)),
            _ => (index, 0, 0),
        };
        Self { keys: graph.nodes.iter().enumerate().map(of_node).collect() }
    }

    fn behind(&mut self, node: usize, added: Range<usize>) {
        self.keys.extend(added.map(|index| (node, 1, index)));
    }

    fn apply(self, graph: &mut Graph) {
        let mut keyed: Vec<_> = self.keys.into_iter().zip(std::mem::take(&mut graph.nodes)).collect();
        keyed.sort_by_key(|(key, _)| *key);
        graph.nodes = keyed.into_iter().map(|(_, node)| node).collect();
    }
}

fn first_reader(graph: &Graph, node: &Node) -> Option<usize> {
    graph.nodes.iter().position(|reader| node.outputs.iter().any(|output| reader.inputs.contains(output)))
}
