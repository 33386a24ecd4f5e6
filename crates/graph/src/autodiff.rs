//! The backward pass as a graph transform: forward nodes are visited last to first, and each
//! operator's rule emits the nodes that carry the gradient on. Values from which no trainable
//! parameter can be reached get no gradient, so what they would need is not kept either.

use std::collections::HashMap;

use crate::ops::Zeros;
use crate::{Class, DType, Extent, Graph, GraphError, Node, Op, OpRule, Phase, Role, Slot, SlotTable, Value, ValueId};

/// The state of the pass, as the rules see it.
pub struct Backward<'a> {
    graph: &'a mut Graph,
    /// Does a trainable parameter lie upstream of this value?
    needs: Vec<bool>,
    /// Gradient of each activation, as far as it is summed up.
    grads: HashMap<ValueId, ValueId>,
    /// Newest version of each trainable parameter's gradient.
    parameters: HashMap<ValueId, ValueId>,
    current: usize,
}

impl Backward<'_> {
    /// The finished gradient of a forward value; `None` if the loss does not depend on it.
    pub fn grad(&self, value: ValueId) -> Option<ValueId> {
        self.grads.get(&value).copied()
    }

    /// What has been summed up so far, for a rule that can add to it in place.
    pub fn partial(&self, value: ValueId) -> Option<ValueId> {
        self.grad(value)
    }

    pub fn value(&self, id: ValueId) -> &Value {
        self.graph.value(id)
    }

    pub fn needs(&self, value: ValueId) -> bool {
        self.needs.get(value.index()).copied().unwrap_or(false)
    }

    pub fn trainable(&self, parameter: ValueId) -> bool {
        self.parameters.contains_key(&parameter)
    }

    /// The rule added to the partial gradient itself.
    pub fn replace(&mut self, value: ValueId, grad: ValueId) {
        self.grads.insert(value, grad);
    }

    /// Adds a contribution to a value's gradient.
    pub fn accumulate(&mut self, value: ValueId, grad: ValueId) -> Result<(), GraphError> {
        if !self.needs(value) {
            return Ok(());
        }
        let total = match self.grad(value) {
            Some(partial) => self.emit_one(crate::ops::Add, &[partial, grad], value)?,
            None => grad,
        };
        self.replace(value, total);
        Ok(())
    }

    /// Emits an operator whose only output is the gradient of `of`.
    pub fn emit_one(&mut self, op: impl Into<Op>, inputs: &[ValueId], of: ValueId) -> Result<ValueId, GraphError> {
        let name = format!("d:{}", self.graph.value(of).name);
        self.graph.apply(op, inputs, &name, Class::NONE)
    }

    /// Emits an operator whose outputs are the gradients of these values, in order.
    pub fn emit_all(
        &mut self,
        op: impl Into<Op>,
        inputs: &[ValueId],
        of: &[ValueId],
    ) -> Result<Vec<ValueId>, GraphError> {
        let names: Vec<String> = of.iter().map(|&v| format!("d:{}", self.graph.value(v).name)).collect();
        let names: Vec<(&str, Class)> = names.iter().map(|name| (name.as_str(), Class::NONE)).collect();
        self.graph.apply_all(op, inputs, &names)
    }

    /// Emits an operator whose only output is a parameter's gradient with a contribution added.
    pub fn accumulate_parameter(
        &mut self,
        parameter: ValueId,
        build: impl FnOnce(ValueId) -> (Op, Vec<ValueId>),
    ) -> Result<(), GraphError> {
        let (op, inputs) = build(self.parameters[&parameter]);
        let updated = self.graph.apply(op, &inputs, "", Class::NONE)?;
        self.parameters.insert(parameter, updated);
        Ok(())
    }

    /// Emits an operator that makes the gradient of `of` and adds to those of `parameters`, whose
    /// current gradients become its last inputs.
    pub fn emit_with_parameters(
        &mut self,
        op: impl Into<Op>,
        mut inputs: Vec<ValueId>,
        parameters: &[ValueId],
        of: Option<ValueId>,
    ) -> Result<Option<ValueId>, GraphError> {
        inputs.extend(parameters.iter().map(|p| self.parameters[p]));
        let name = of.map(|v| format!("d:{}", self.graph.value(v).name));
        let mut names: Vec<(&str, Class)> = name.iter().map(|n| (n.as_str(), Class::NONE)).collect();
        names.extend(parameters.iter().map(|_| ("", Class::NONE)));
        let outputs = self.graph.apply_all(op, &inputs, &names)?;
        let first_parameter = usize::from(of.is_some());
        for (parameter, &updated) in parameters.iter().zip(&outputs[first_parameter..]) {
            self.parameters.insert(*parameter, updated);
        }
        Ok(of.map(|_| outputs[0]))
    }

    /// Turns the loss node itself into one that makes gradients too: behind the outputs it had come the gradient
    /// that goes on, then those of `parameters`. The node keeps its place.
    pub fn rewrite_root(
        &mut self,
        op: impl Into<Op>,
        node: &Node,
        parameters: &[ValueId],
        (name, class): (&str, Class),
    ) -> Result<ValueId, GraphError> {
        let op = op.into();
        let mut inputs = node.inputs.clone();
        inputs.extend(parameters.iter().map(|p| self.parameters[p]));
        let described = {
            let values: Vec<_> = inputs.iter().map(|&v| self.graph.value(v)).collect();
            op.outputs(&values)?
        };
        let mut outputs = node.outputs.clone();
        let first = outputs.len();
        for (index, mut value) in described.into_iter().enumerate().skip(first) {
            if index == first {
                value.name = name.to_owned();
                value.class = class;
            } else {
                let source = self.graph.value(inputs[inputs.len() - parameters.len() + index - first - 1]);
                value.name.clone_from(&source.name);
                value.slot = source.slot;
            }
            outputs.push(self.graph.add_value(value)?);
        }
        for (parameter, &updated) in parameters.iter().zip(&outputs[first + 1..]) {
            self.parameters.insert(*parameter, updated);
        }
        let gradient = outputs[first];
        self.graph.nodes[self.current] = Node { op, inputs, outputs, ..node.clone() };
        Ok(gradient)
    }
}

/// Extends a forward graph by its backward pass. Each trainable parameter gets a gradient slot
/// (`grad:NAME`, of `grad_dtype`) to which every run of the graph adds; returned in the parameters' order.
pub fn differentiate(
    graph: &mut Graph,
    slots: &mut SlotTable,
    trainable: &[ValueId],
    grad_dtype: DType,
) -> Result<Vec<crate::SlotId>, GraphError> {
    let mut parameters = HashMap::new();
    let mut grad_slots = Vec::new();
    for &parameter in trainable {
        let value = graph.value(parameter).clone();
        let slot = slots.add(Slot {
            name: format!("grad:{}", value.name),
            shape: value.shape,
            storage: grad_dtype.into(),
            role: Role::Gradient,
            extent: Extent::Fixed,
            layer: value.layer,
        })?;
        grad_slots.push(slot);
        parameters.insert(parameter, graph.slot(slots, slot)?);
    }
    let forward = graph.nodes.len();
    run(graph, forward, trainable, parameters)?;
    Ok(grad_slots)
}

/// As [`differentiate`] with gradients that live no longer than they are needed: each begins as zeros, and is complete in
/// the value returned for it. The zeros are made at the end of the graph: whoever orders its nodes puts them where they are
/// read.
pub fn differentiate_transient(
    graph: &mut Graph,
    trainable: &[ValueId],
    grad_dtype: DType,
) -> Result<Vec<ValueId>, GraphError> {
    let forward = graph.nodes.len();
    graph.set_phase(Phase::Backward);
    let mut parameters = HashMap::new();
    for &parameter in trainable {
        let Value { shape, layer, .. } = *graph.value(parameter);
        graph.set_layer(layer);
        let name = format!("grad:{}", graph.value(parameter).name);
        let zeros = Zeros { shape, dtype: grad_dtype, role: Role::Gradient };
        parameters.insert(parameter, graph.apply(zeros, &[], &name, Class::NONE)?);
    }
    let complete = run(graph, forward, trainable, parameters)?;
    Ok(trainable.iter().map(|parameter| complete[parameter]).collect())
}

/// Visits the forward nodes; the newest version of each trainable parameter's gradient.
fn run(
    graph: &mut Graph,
    forward: usize,
    trainable: &[ValueId],
    parameters: HashMap<ValueId, ValueId>,
) -> Result<HashMap<ValueId, ValueId>, GraphError> {
    let needs = reaches(graph, trainable);
    graph.set_phase(Phase::Backward);
    let mut pass = Backward { graph, needs, grads: HashMap::new(), parameters, current: 0 };
    for index in (0..forward).rev() {
        let node = pass.graph.nodes[index].clone();
        pass.current = index;
        let wanted = node.outputs.iter().any(|&v| pass.needs(v));
        if wanted {
            pass.graph.set_layer(node.layer);
            node.op.backward(&node, &mut pass)?;
        }
    }
    let complete = pass.parameters;
    graph.set_layer(None);
    Ok(complete)
}

/// Marks every value that depends on a trainable parameter.
fn reaches(graph: &Graph, trainable: &[ValueId]) -> Vec<bool> {
    let mut reached = vec![false; graph.values.len()];
    for parameter in trainable {
        reached[parameter.index()] = true;
    }
    for node in &graph.nodes {
        if node.inputs.iter().any(|v| reached[v.index()]) {
            for output in &node.outputs {
                reached[output.index()] = true;
            }
        }
    }
    reached
}
