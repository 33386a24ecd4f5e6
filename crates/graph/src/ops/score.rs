//! A score for each sequence, read at its last token, and the loss of preferring one sequence to another.

use super::LossGrad;
use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::{Backward, Class, Cost, GraphError, Node, Role, Target, Value};

/// What `PairLoss` counts: pairs, pairs in which the chosen sequence has the higher score, and the sum of the
/// differences of the scores.
pub const PAIR_STATS: usize = 3;

/// Inputs `hidden [N, D], w [1, D], cu_seqlens, scale [1] f32, loss [1] f64, stats [PAIR_STATS] f64, [dw]`;
/// outputs `loss + scale·Σ −log σ(chosen − rejected), stats, [d_hidden, [dw]]`.
///
/// Sequences lie in pairs, the chosen one first. A sequence's score is `w·hidden[its last token]`. A pair of which
/// either sequence is empty counts for nothing. `d_hidden` is zero everywhere but at the last tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct PairLoss {
    pub grad: Option<LossGrad>,
}

impl OpRule for PairLoss {
    fn name(&self) -> &'static str {
        "pair_loss"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let weight_grad = self.grad.is_some_and(|g| g.weight);
        expect_inputs(self.name(), inputs, 6 + usize::from(weight_grad))?;
        expect_shape(self.name(), inputs, 1, &[1, inputs[0].shape.cols()])?;
        expect_shape(self.name(), inputs, 5, &[PAIR_STATS])?;
        let mut outputs = vec![same_as(inputs[4]), same_as(inputs[5])];
        if self.grad.is_some() {
            outputs.push(Value { role: Role::Loss, ..same_as(inputs[0]) });
        }
        if weight_grad {
            outputs.push(same_as(inputs[6]));
        }
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let mut aliases = vec![Alias::Must { output: 0, input: 4 }, Alias::Must { output: 1, input: 5 }];
        if let Some(grad) = self.grad {
            aliases.push(Alias::May { output: 2, input: 0 });
            if grad.weight {
                aliases.push(Alias::Must { output: 3, input: 6 });
            }
        }
        aliases
    }

    fn cost(&self, io: &Io) -> Cost {
        let touched = io.inputs[2].shape.rows() * io.inputs[0].shape.cols();
        let written = if self.grad.is_some() { io.inputs[0].bytes() } else { 0 };
        Cost::vector(6.0 * touched as f64, (touched * io.inputs[0].dtype.bytes() + written) as f64)
    }

    /// A number for each sequence: its score, then the score's gradient.
    fn workspace_bytes(&self, io: &Io, _target: &Target) -> usize {
        io.inputs[2].shape.rows() * size_of::<f32>()
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let (hidden, weight) = (node.inputs[0], node.inputs[1]);
        let weight_grad = pass.trainable(weight);
        if !weight_grad && !pass.needs(hidden) {
            return Ok(());
        }
        let op = PairLoss { grad: Some(LossGrad { weight: weight_grad }) };
        let parameters: &[_] = if weight_grad { &[weight] } else { &[] };
        let d_hidden = pass.rewrite_root(op, node, parameters, ("d_hidden", Class::NONE))?;
        pass.accumulate(hidden, d_hidden)
    }
}
