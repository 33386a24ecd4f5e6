//! The vocabulary projection and the cross entropy as one operator, a chunk of tokens at a time, so
//! that the full logits never exist. Gradients are made on the way: the loss is the last operator of
//! the forward pass and its scale is known, so nothing needs to be computed twice.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, output, same_as};
use crate::{Backward, Class, Cost, DType, Extent, GraphError, Node, Role, Target, Value};

/// Which gradients the loss makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossGrad {
    pub weight: bool,
}

/// Inputs `hidden [N, D], W [V, D], targets [N], scale [1] f32, loss [1] f64, [dW]`;
/// outputs `loss + scale·Σ nll, [d_hidden, [dW]]`. Targets below zero bear no loss.
/// With `softcap = c`, logits pass through `c·tanh(z / c)`.
#[derive(Debug, Clone, PartialEq)]
pub struct VocabLoss {
    pub softcap: Option<f32>,
    /// Into how many chunks the tokens are divided.
    pub chunks: usize,
    pub grad: Option<LossGrad>,
}

impl VocabLoss {
    pub fn chunk_rows(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.chunks.max(1))
    }
}

impl OpRule for VocabLoss {
    fn name(&self) -> &'static str {
        "vocab_loss"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let weight_grad = self.grad.is_some_and(|g| g.weight);
        expect_inputs(self.name(), inputs, 5 + usize::from(weight_grad))?;
        let (rows, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
        expect_shape(self.name(), inputs, 1, &[inputs[1].shape.rows(), cols])?;
        expect_shape(self.name(), inputs, 2, &[rows])?;
        let mut outputs = vec![same_as(inputs[4])];
        if self.grad.is_some() {
            outputs.push(Value { role: Role::Loss, ..same_as(inputs[0]) });
        }
        if weight_grad {
            outputs.push(same_as(inputs[5]));
        }
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let mut aliases = vec![Alias::Must { output: 0, input: 4 }];
        if let Some(grad) = self.grad {
            aliases.push(Alias::May { output: 1, input: 0 });
            if grad.weight {
                aliases.push(Alias::Must { output: 2, input: 5 });
            }
        }
        aliases
    }

    fn cost(&self, io: &Io) -> Cost {
        let products = 1.0 + self.grad.map_or(0.0, |g| if g.weight { 2.0 } else { 1.0 });
        let elements = io.inputs[0].shape.elements() as f64;
        Cost::matmul(2.0 * products * elements * io.inputs[1].shape.rows() as f64, io.bytes())
    }

    /// One chunk of logits, which its gradient then replaces. Sixteen-bit products take the gradient in their own type.
    fn workspace_bytes(&self, io: &Io, target: &Target) -> usize {
        let entries = self.chunk_rows(io.inputs[0].shape.rows()) * io.inputs[1].shape.rows();
        let narrow = if self.grad.is_some() && io.inputs[0].dtype.bytes() == 2 { 2 } else { 0 };
        target.matmul_workspace_bytes + entries * (4 + narrow)
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let (hidden, weight) = (node.inputs[0], node.inputs[1]);
        let weight_grad = pass.trainable(weight);
        if !weight_grad && !pass.needs(hidden) {
            return Ok(());
        }
        let op = VocabLoss { grad: Some(LossGrad { weight: weight_grad }), ..self.clone() };
        let parameters: &[_] = if weight_grad { &[weight] } else { &[] };
        let d_hidden = pass.rewrite_root(op, node, parameters, ("d_hidden", Class::NONE))?;
        pass.accumulate(hidden, d_hidden)
    }
}

/// The logits of each sequence's last token. Inputs `hidden [N, D], W [V, D], cu_seqlens`; output
/// `[sequences, V]` f32. The micro-batch must hold no more than `sequences` sequences.
#[derive(Debug, Clone, PartialEq)]
pub struct LastLogits {
    pub softcap: Option<f32>,
    pub sequences: usize,
}

impl OpRule for LastLogits {
    fn name(&self) -> &'static str {
        "last_logits"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3)?;
        let shape = [self.sequences, inputs[1].shape.rows()];
        Ok(vec![output(&shape, DType::F32, Role::Loss, Extent::Sequences)])
    }

    fn cost(&self, io: &Io) -> Cost {
        let flops = 2.0 * io.outputs[0].shape.elements() as f64 * io.inputs[0].shape.cols() as f64;
        Cost::matmul(flops, io.inputs[1].bytes() as f64)
    }

    /// The gathered rows.
    fn workspace_bytes(&self, io: &Io, target: &Target) -> usize {
        target.matmul_workspace_bytes + io.outputs[0].shape.rows() * io.inputs[0].shape.cols() * 4
    }
}
