//! Nonlinearities of the MLP, gated (`act(gate)·up`) and plain.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, rows_of, same_as};
use crate::ops::{Adapters, InnerDropout};
use crate::{Backward, GraphError, Node, Op, Value, Work};

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
/// GeGLU. With adapters, which have two further inputs `low_rank [N, n·r], b [Σ len, r]`, the halves are those of
/// `gate_up + α·low_rank_j·b_jᵀ`, a sum that is made on the way and stored nowhere.
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

/// Checks the low-rank rows and second matrices at `at`, if there are adapters.
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

/// What adapters add, whose low-rank rows are at `at`.
fn adapter_flops(adapters: Option<&Adapters>, io: &Io, at: usize) -> f64 {
    adapters.map_or(0.0, |adapters| adapters.flops(io.inputs[0].shape.rows(), io.inputs[at + 1].shape.cols()))
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
        Ok(vec![rows_of(inputs[0], cols / 2, inputs[0].dtype())])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        let flops = 12.0 * io.outputs[0].shape.elements() as f64;
        Work::memory(flops + adapter_flops(self.adapters.as_ref(), io, 1), io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let gate_up = node.inputs[0];
        let op = GatedGrad { adapters: self.adapters.clone(), ..GatedGrad::new(self.activation) };
        let inputs = [&[gate_up, dy], &node.inputs[1..]].concat();
        let dx = pass.emit_one(op, &inputs, gate_up)?;
        if let Some(adapters) = &self.adapters {
            adapters.backward(self.name(), dx, [node.inputs[1], node.inputs[2]], pass)?;
        }
        pass.accumulate(gate_up, dx)
    }
}

/// What an adapter's first matrix gives to the gradient of its input: `drop(α·dh·A)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterShare {
    pub alpha: f32,
    pub dropout: Option<InnerDropout>,
}

/// Inputs `gate_up [N, 2F], dy [N, F]`, with adapters `low_rank, b`; output `d_gate_up [N, 2F]`, which is also the gradient
/// of what the adapters add. With a last share of `dy`, which is added to it on the way, follow `dh [N, r], A [r, F]`,
/// and with dropout `row_ids, rng_key`. `with_value` adds the output `[N, F]` of [`Gated`], which is made on the way anyway.
#[derive(Debug, Clone, PartialEq)]
pub struct GatedGrad {
    pub activation: Activation,
    pub adapters: Option<Adapters>,
    pub last_share: Option<AdapterShare>,
    pub with_value: bool,
}

impl GatedGrad {
    pub fn new(activation: Activation) -> Self {
        Self { activation, adapters: None, last_share: None, with_value: false }
    }

    /// Position of the adapters' low-rank rows among the inputs; their second matrices follow.
    pub fn adapter_inputs(&self) -> Option<usize> {
        self.adapters.as_ref().map(|_| 2)
    }

    /// Position of the last share's `dh` among the inputs; `A`, and with dropout `row_ids, rng_key`, follow it.
    pub fn share_inputs(&self) -> Option<usize> {
        self.last_share.map(|_| 2 + 2 * usize::from(self.adapters.is_some()))
    }

    fn check_share(&self, inputs: &[&Value]) -> Result<usize, GraphError> {
        let (Some(share), Some(at)) = (self.last_share, self.share_inputs()) else { return Ok(inputs.len()) };
        expect_inputs(self.name(), inputs, at + 2 + 2 * usize::from(share.dropout.is_some()))?;
        let (rows, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
        let rank = inputs[at + 1].shape.rows();
        expect_shape(self.name(), inputs, at, &[rows, rank])?;
        expect_shape(self.name(), inputs, at + 1, &[rank, cols / 2])?;
        Ok(at)
    }
}

impl OpRule for GatedGrad {
    fn name(&self) -> &'static str {
        "gated_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let share = self.check_share(inputs)?;
        check_adapters(self.name(), self.adapters.as_ref(), &inputs[..share], 2)?;
        let (rows, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
        expect_shape(self.name(), inputs, 1, &[rows, cols / 2])?;
        let value = self.with_value.then(|| rows_of(inputs[0], cols / 2, inputs[0].dtype()));
        Ok([same_as(inputs[0])].into_iter().chain(value).collect())
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::May { output: 0, input: 0 }]
    }

    fn remaking(&self, node: &Node, forward: &Node) -> Option<Op> {
        let Op::Gated(gated) = &forward.op else { return None };
        let adapters = self.adapter_inputs().map_or(&[][..], |at| &node.inputs[at..at + 2]);
        let same = gated.activation == self.activation && gated.adapters == self.adapters;
        let same = same && forward.inputs[0] == node.inputs[0] && forward.inputs[1..] == *adapters;
        (same && !self.with_value).then(|| Op::from(Self { with_value: true, ..self.clone() }))
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        let elements = io.inputs[1].shape.elements() as f64;
        let rank = self.share_inputs().map_or(0, |at| io.inputs[at].shape.cols());
        let flops = (20.0 + 2.0 * rank as f64) * elements;
        Work::memory(flops + adapter_flops(self.adapters.as_ref(), io, 2), io.bytes())
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

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(8.0 * io.outputs[0].shape.elements() as f64, io.bytes())
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

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(10.0 * io.outputs[0].shape.elements() as f64, io.bytes())
    }
}
