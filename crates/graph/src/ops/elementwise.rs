//! Sums, multiples, dropout and zeros.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, output, same_as};
use crate::{Backward, DType, Extent, GraphError, Node, Role, Shape, Value, Work};

/// `a + b`.
#[derive(Debug, Clone, PartialEq)]
pub struct Add;

impl OpRule for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_shape(self.name(), inputs, 1, inputs[0].shape.dims())?;
        Ok(vec![Value { role: Role::Activation, ..same_as(inputs[0]) }])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::May { output: 0, input: 0 }, Alias::May { output: 0, input: 1 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(io.outputs[0].shape.elements() as f64, io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        pass.accumulate(node.inputs[0], dy)?;
        pass.accumulate(node.inputs[1], dy)
    }
}

/// `factor·x`.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    pub factor: f32,
}

impl OpRule for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 1)?;
        Ok(vec![Value { role: Role::Activation, ..same_as(inputs[0]) }])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::May { output: 0, input: 0 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(io.outputs[0].shape.elements() as f64, io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let dx = pass.emit_one(self.clone(), &[dy], node.inputs[0])?;
        pass.accumulate(node.inputs[0], dx)
    }
}

/// Inputs `x, row_ids [N], rng_key [4] u32`; keeps an element with probability 1 - p and scales it up,
/// where p is taken as the nearest 65536th part. The mask is a function of (key, site, row id, column), so
/// the gradient is this operator again.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropout {
    pub p: f32,
    pub site: u32,
}

impl OpRule for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3)?;
        expect_shape(self.name(), inputs, 1, &[inputs[0].shape.rows()])?;
        Ok(vec![same_as(inputs[0])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::May { output: 0, input: 0 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(10.0 * io.outputs[0].shape.elements() as f64, io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let dx = pass.emit_one(self.clone(), &[dy, node.inputs[1], node.inputs[2]], node.inputs[0])?;
        pass.accumulate(node.inputs[0], dx)
    }
}

/// No inputs; a value of zeros, for others to add to.
#[derive(Debug, Clone, PartialEq)]
pub struct Zeros {
    pub shape: Shape,
    pub dtype: DType,
    pub role: Role,
}

impl OpRule for Zeros {
    fn name(&self) -> &'static str {
        "zeros"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 0)?;
        Ok(vec![output(self.shape.dims(), self.dtype, self.role, Extent::Fixed)])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(0.0, io.bytes())
    }

    fn launches(&self, _io: &Io) -> usize {
        1
    }
}
