//! MLPs, over all rows at once or over one chunk of them after another: each is the same layer with the same masks.

use plimsoll_graph::ops::{Gated, JoinRows, Pointwise, SplitRows};
use plimsoll_graph::{Class, ValueId};

use super::Forward;
use crate::ModelError;
use crate::architecture::MlpModule;
use crate::registry::BlockNames;

impl<'a> Forward<'a> {
    pub(super) fn mlp(&mut self, x: ValueId, module: &'a MlpModule, names: &BlockNames) -> Result<ValueId, ModelError> {
        if self.last_only || self.graph.value(x).shape.rows() <= self.mlp_rows {
            return self.whole_mlp(x, module, names);
        }
        let class = self.graph.value(x).class;
        let (dropouts, mut chunks) = (self.dropouts, Vec::new());
        for (index, chunk) in self.split(x, class)?.into_iter().enumerate() {
            (self.chunk, self.dropouts) = (Some(index), dropouts);
            chunks.push(self.whole_mlp(chunk, module, names)?);
        }
        self.chunk = None;
        let name = format!("{}.mlp_joined", names.own);
        Ok(self.graph.apply(JoinRows, &chunks, &name, Class::NONE)?)
    }

    /// The chunks of a stream's rows, of the same class as the whole: whoever drops that drops them.
    fn split(&mut self, x: ValueId, class: Class) -> Result<Vec<ValueId>, ModelError> {
        let (rows, whole) = (self.graph.value(x).shape.rows(), self.graph.value(x).name.clone());
        let op = SplitRows::new(rows, self.mlp_rows);
        let names: Vec<String> = (0..op.runs).map(|index| format!("{whole}.{index}")).collect();
        let labels: Vec<(&str, Class)> = names.iter().map(|name| (name.as_str(), class)).collect();
        Ok(self.graph.apply_all(op, &[x], &labels)?)
    }

    fn whole_mlp(&mut self, x: ValueId, module: &'a MlpModule, names: &BlockNames) -> Result<ValueId, ModelError> {
        let name = format!("{}.mlp_act", names.own);
        let act = if module.gated {
            let gate_up = self.project(x, names, &module.input, Class("gate_up"))?;
            self.graph.apply(Gated::new(module.activation), &[gate_up], &name, Class("mlp_act"))?
        } else {
            let up = self.project(x, names, &module.input, Class("up"))?;
            self.graph.apply(Pointwise(module.activation), &[up], &name, Class("mlp_act"))?
        };
        let act = self.dropped(act, Class("mlp_act"))?;
        self.project(act, names, &module.output, Class::NONE)
    }

    /// The ids of one chunk's rows.
    pub(super) fn chunk_row_ids(&mut self, all: ValueId, chunk: usize) -> Result<ValueId, ModelError> {
        if !self.row_ids_in_chunks.contains_key(&self.stream) {
            let ids = self.split(all, Class::NONE)?;
            self.row_ids_in_chunks.insert(self.stream, ids);
        }
        Ok(self.row_ids_in_chunks[&self.stream][chunk])
    }
}
