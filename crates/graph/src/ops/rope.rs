//! Rotary positions, half-split: pairs are (i, i + head_dim/2).

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::ops::Heads;
use crate::{Backward, GraphError, Node, Value, Work};

/// Rotates the query and key heads of a fused row; values pass through.
/// Inputs `qkv, table [positions, head_dim] (cosines, then sines), positions [N]`.
/// `inverse` rotates back, which is also the gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub heads: Heads,
    pub inverse: bool,
}

impl OpRule for Rope {
    fn name(&self) -> &'static str {
        if self.inverse { "rope_grad" } else { "rope" }
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3)?;
        let rows = inputs[0].shape.rows();
        expect_shape(self.name(), inputs, 0, &[rows, self.heads.fused_cols()])?;
        expect_shape(self.name(), inputs, 1, &[inputs[1].shape.rows(), self.heads.head_dim])?;
        expect_shape(self.name(), inputs, 2, &[rows])?;
        Ok(vec![same_as(inputs[0])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::May { output: 0, input: 0 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(3.0 * io.inputs[0].shape.elements() as f64, 2.0 * io.inputs[0].bytes() as f64)
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let op = Rope { inverse: !self.inverse, ..self.clone() };
        let dx = pass.emit_one(op, &[dy, node.inputs[1], node.inputs[2]], node.inputs[0])?;
        pass.accumulate(node.inputs[0], dx)
    }
}
