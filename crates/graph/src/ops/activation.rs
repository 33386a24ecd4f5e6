//! Nonlinearities of the MLP, gated (`act(gate)·up`) and plain.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, rows_of, same_as};
use crate::ops::Adapters;
use crate::{Backward, Cost, GraphError, Node, Value};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// With the error function.
    Gelu,
    /// The tanh approximation.
    GeluTanh,
    Relu,
    /// relu(x)².
    Relu2,
}

/// `act(gate)·up` with both halves in one row: input `gate_up [N, 2F]`, output `[N, F]`. Silu makes SwiGLU, Gelu makes
/// GeGLU. With adapters, which have two further inputs `narrow [N, n·r], b [Σ len, r]`, the halves are those of
/// `gate_up + α·narrow_j·b_jᵀ`, a sum that is made on the way and stored nowhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Gated {
    pub activation: Activation,
    pub adapters: Option<Adapters>,
}

impl Gated {
    pub fn new(activation: Activation) -> Self {
        Self { activation, adapters: None }
    }
}

/// Checks the narrow rows and second matrices at `at`, if there are adapters.
fn check_adapters(
    op: &'static str,
    adapters: Option<&Adapters>,
    inputs: &[&Value],
    at: usize,
) -> Result<(), GraphError> {
    let Some(adapters) = adapters else { return expect_inputs(op, inputs, at) };
    expect_inputs(op, inputs, at + 2)?;
    let (rows, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
    if adapters.total != cols {
        let reason = format!("adapters of {} columns do not belong to {cols}", adapters.total);
        return Err(GraphError::Invalid { op, reason });
    }
    adapters.check(op, inputs[at], inputs[at + 1])?;
    expect_shape(op, inputs, at, &[rows, inputs[at].shape.cols()])
}

fn adapter_flops(adapters: Option<&Adapters>, io: &Io) -> f64 {
    let rank = || io.inputs.last().map_or(0, |b| b.shape.cols());
    adapters.map_or(0.0, |adapters| adapters.flops(io.inputs[0].shape.rows(), rank()))
}

impl OpRule for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        check_adapters(self.name(), self.adapters.as_ref(), inputs, 1)?;
        let cols = inputs[0].shape.cols();
        if !cols.is_multiple_of(2) {
            return Err(GraphError::Invalid { op: self.name(), reason: format!("{cols} columns are not two halves") });
        }
        Ok(vec![rows_of(inputs[0], cols / 2, inputs[0].dtype)])
    }

    fn cost(&self, io: &Io) -> Cost {
        let flops = 12.0 * io.outputs[0].shape.elements() as f64;
        Cost::vector(flops + adapter_flops(self.adapters.as_ref(), io), io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let op = GatedGrad { activation: self.activation, adapters: self.adapters.clone() };
        let gate_up = node.inputs[0];
        let inputs = [&[gate_up, dy], &node.inputs[1..]].concat();
        let dx = pass.emit_one(op, &inputs, gate_up)?;
        if let Some(adapters) = &self.adapters {
            adapters.backward(self.name(), dx, [node.inputs[1], node.inputs[2]], pass)?;
        }
        pass.accumulate(gate_up, dx)
    }
}

/// Inputs `gate_up [N, 2F], dy [N, F]`, with adapters `narrow, b`; output `d_gate_up [N, 2F]`, which is also the gradient
/// of what the adapters add.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedGrad {
    pub activation: Activation,
    pub adapters: Option<Adapters>,
}

impl GatedGrad {
    pub fn new(activation: Activation) -> Self {
        Self { activation, adapters: None }
    }
}

impl OpRule for GatedGrad {
    fn name(&self) -> &'static str {
        "gated_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        check_adapters(self.name(), self.adapters.as_ref(), inputs, 2)?;
        let (rows, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
        expect_shape(self.name(), inputs, 1, &[rows, cols / 2])?;
        Ok(vec![same_as(inputs[0])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::May { output: 0, input: 0 }]
    }

    fn cost(&self, io: &Io) -> Cost {
        let flops = 20.0 * io.inputs[1].shape.elements() as f64;
        Cost::vector(flops + adapter_flops(self.adapters.as_ref(), io), io.bytes())
    }
}

/// `act(x)`, element by element.
#[derive(Debug, Clone, PartialEq)]
pub struct Pointwise(pub Activation);

impl OpRule for Pointwise {
    fn name(&self) -> &'static str {
        "pointwise"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 1)?;
        Ok(vec![same_as(inputs[0])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::May { output: 0, input: 0 }]
    }

    fn cost(&self, io: &Io) -> Cost {
        Cost::vector(8.0 * io.outputs[0].shape.elements() as f64, io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let dx = pass.emit_one(PointwiseGrad(self.0), &[node.inputs[0], dy], node.inputs[0])?;
        pass.accumulate(node.inputs[0], dx)
    }
}

/// Inputs `x, dy`; output `act'(x)·dy`.
#[derive(Debug, Clone, PartialEq)]
pub struct PointwiseGrad(pub Activation);

impl OpRule for PointwiseGrad {
    fn name(&self) -> &'static str {
        "pointwise_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_shape(self.name(), inputs, 1, inputs[0].shape.dims())?;
        Ok(vec![same_as(inputs[0])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::May { output: 0, input: 1 }, Alias::May { output: 0, input: 0 }]
    }

    fn cost(&self, io: &Io) -> Cost {
        Cost::vector(10.0 * io.outputs[0].shape.elements() as f64, io.bytes())
    }
}
