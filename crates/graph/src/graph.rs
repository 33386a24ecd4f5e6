use crate::op::{Io, Op, OpRule};
use crate::{Alias, Class, Extent, GraphError, Role, Shape, SlotId, SlotTable, StreamId, Value, ValueId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Forward,
    /// A forward operator run a second time because its result was not kept.
    Recompute,
    Backward,
    Update,
}

#[derive(Debug, Clone)]
pub struct Node {
    pub op: Op,
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    pub phase: Phase,
    pub layer: Option<u32>,
}

/// Nodes in execution order over single-assignment values.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    pub values: Vec<Value>,
    pub nodes: Vec<Node>,
    /// Values the host reads after the last node.
    pub results: Vec<ValueId>,
    /// The first version of each slot that was brought in.
    of_slot: Vec<Option<ValueId>>,
    /// Layer and phase given to nodes as they are added.
    layer: Option<u32>,
    phase: Option<Phase>,
}

impl Graph {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    pub fn set_layer(&mut self, layer: Option<u32>) {
        self.layer = layer;
    }

    pub fn set_phase(&mut self, phase: Phase) {
        self.phase = Some(phase);
    }

    /// Brings a slot into this graph as its first version.
    pub fn slot(&mut self, slots: &SlotTable, id: SlotId) -> Result<ValueId, GraphError> {
        match self.of_slot.get(id.0 as usize) {
            Some(&Some(known)) => Ok(known),
            _ => self.add_value(slots.value(id)),
        }
    }

    /// Fails where no memory could hold the value.
    pub fn add_value(&mut self, value: Value) -> Result<ValueId, GraphError> {
        value.check()?;
        if self.values.len() >= crate::VALUES_MAX {
            return Err(GraphError::TooMany { what: "values", max: crate::VALUES_MAX });
        }
        let id = ValueId(self.values.len() as u32);
        if let Some(SlotId(slot)) = value.slot {
            let slot = slot as usize;
            self.of_slot.resize(self.of_slot.len().max(slot + 1), None);
            self.of_slot[slot].get_or_insert(id);
        }
        self.values.push(value);
        Ok(id)
    }

    /// The graph with other nodes, and with copies of these values behind its own.
    pub fn rewritten(&self, nodes: Vec<Node>, copies: &[ValueId]) -> Self {
        let copies = copies.iter().map(|&original| self.value(original));
        // As large as the originals, which were checked.
        let values = self.values.iter().chain(copies).cloned().collect();
        Self { values, nodes, results: self.results.clone(), of_slot: self.of_slot.clone(), ..*self }
    }

    /// The same for at most so many tokens of a stream at a time: what it makes of them has no more rows.
    pub fn with_rows_at_most(mut self, stream: StreamId, rows: usize) -> Self {
        let made =
            self.values.iter_mut().filter(|value| value.slot.is_none() && value.extent == Extent::Tokens(stream));
        for value in made.filter(|value| value.shape.rows() > rows) {
            let dims: Vec<usize> = [&[rows], &value.shape.dims()[1..]].concat();
            value.shape = Shape::new(&dims);
        }
        self
    }

    /// Adds an operator with one output of the given name and class.
    pub fn apply(
        &mut self,
        op: impl Into<Op>,
        inputs: &[ValueId],
        name: &str,
        class: Class,
    ) -> Result<ValueId, GraphError> {
        Ok(self.apply_all(op, inputs, &[(name, class)])?[0])
    }

    /// Adds an operator; `names` labels its outputs in order.
    pub fn apply_all(
        &mut self,
        op: impl Into<Op>,
        inputs: &[ValueId],
        names: &[(&str, Class)],
    ) -> Result<Vec<ValueId>, GraphError> {
        let op = op.into();
        let input_values: Vec<&Value> = inputs.iter().map(|&id| self.value(id)).collect();
        let mut outputs = op.outputs(&input_values)?;
        if outputs.len() != names.len() {
            return Err(GraphError::Invalid {
                op: op.name(),
                reason: format!("has {} outputs, {} were named", outputs.len(), names.len()),
            });
        }
        for (value, (name, class)) in outputs.iter_mut().zip(names) {
            value.name = (*name).to_owned();
            value.class = *class;
            value.layer = self.layer;
        }
        for alias in op.aliases() {
            if let Alias::Must { output, input } = alias {
                let source = self.value(inputs[input]);
                outputs[output].slot = source.slot;
                outputs[output].role = source.role;
                if source.slot.is_some() {
                    outputs[output].name.clone_from(&source.name);
                }
            }
        }
        let ids: Vec<ValueId> = outputs.into_iter().map(|v| self.add_value(v)).collect::<Result<_, _>>()?;
        self.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            outputs: ids.clone(),
            phase: self.phase.unwrap_or(Phase::Forward),
            layer: self.layer,
        });
        Ok(ids)
    }

    pub fn io<'g>(&'g self, node: &Node) -> Io<'g> {
        Io {
            inputs: node.inputs.iter().map(|&v| self.value(v)).collect(),
            outputs: node.outputs.iter().map(|&v| self.value(v)).collect(),
        }
    }

    /// The node that makes each value; `None` for what was there before the schedule began.
    pub fn producers(&self) -> Vec<Option<NodeId>> {
        let mut producers = vec![None; self.values.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            for output in &node.outputs {
                producers[output.index()] = Some(NodeId(index as u32));
            }
        }
        producers
    }

    pub fn relabel(&mut self, id: ValueId, role: Role) {
        self.values[id.index()].role = role;
    }
}
