//! Rotary positions, half-split: pairs are (i, i + rotated/2).

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::ops::Heads;
use crate::{Backward, GraphError, Node, Value, Work};

/// Rotates the first columns of the query and key heads of a fused row; their other columns and the values pass through.
/// Inputs `qkv, table [positions, rotated] (cosines, then sines), positions [N]`.
/// `inverse` rotates back, which is also the gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub heads: Heads,
    /// Columns of each head that are rotated: an even number, all of them in most families.
    pub rotated: usize,
    pub inverse: bool,
}

impl Rope {
    /// Rotates whole heads.
    pub const fn new(heads: Heads) -> Self {
        Self { heads, rotated: heads.head_dim, inverse: false }
    }
}

impl OpRule for Rope {
    fn name(&self) -> &'static str {
        if self.inverse { "rope_grad" } else { "rope" }
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3)?;
        let (rotated, head_dim) = (self.rotated, self.heads.head_dim);
        if rotated == 0 || !rotated.is_multiple_of(2) || rotated > head_dim {
            let reason = format!("it cannot rotate {rotated} of {head_dim} columns; expected an even number of them");
            return Err(GraphError::Invalid { op: self.name(), reason });
        }
        let rows = inputs[0].shape.rows();
        expect_shape(self.name(), inputs, 0, &[rows, self.heads.fused_cols()])?;
        expect_shape(self.name(), inputs, 1, &[inputs[1].shape.rows(), rotated])?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::output;
    use crate::{DType, Extent, Role};

    #[test]
    fn an_even_number_of_columns_is_rotated() {
        let heads = Heads { query: 2, kv: 1, head_dim: 8 };
        for (rotated, valid) in [(0, false), (2, true), (3, false), (8, true), (10, false)] {
            let input = |shape: &[usize], dtype, extent| output(shape, dtype, Role::Input, extent);
            let qkv = input(&[5, heads.fused_cols()], DType::F32, Extent::TOKENS);
            let table = input(&[50, rotated.max(1)], DType::F32, Extent::Fixed);
            let positions = input(&[5], DType::I32, Extent::TOKENS);
            let op = Rope { rotated, ..Rope::new(heads) };
            let outputs = op.outputs(&[&qkv, &table, &positions]);
            assert_eq!(outputs.is_ok(), valid, "{rotated} rotated: {outputs:?}");
            assert!(valid || matches!(outputs, Err(GraphError::Invalid { op: "rope", .. })), "{outputs:?}");
        }
    }
}
