//! How likely whole sequences are, and losses that prefer one of a pair to the other by that.

use super::rows::sequences;
use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, output, same_as};
use crate::{Backward, Class, DType, Extent, GraphError, Node, Role, Value, Work};

/// Inputs `nll [N] f32, targets [N] i32, cu_seqlens [S + 1]`; output `[S] f32`: the sum of `−nll` over a sequence's tokens
/// that have a target, or with `mean` their mean. Zero where a sequence has none.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceLogProb {
    pub mean: bool,
}

impl OpRule for SequenceLogProb {
    fn name(&self) -> &'static str {
        "sequence_log_prob"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3)?;
        expect_shape(self.name(), inputs, 1, inputs[0].shape.dims())?;
        let (stream, count) = sequences(self.name(), inputs[2])?;
        Ok(vec![output(&[count], DType::F32, Role::Loss, Extent::Sequences(stream))])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(io.inputs[0].shape.elements() as f64, io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let op = SequenceLogProbGrad { mean: self.mean };
        let d_nll = pass.emit_one(op, &[dy, node.inputs[1], node.inputs[2]], node.inputs[0])?;
        pass.accumulate(node.inputs[0], d_nll)
    }
}

/// Inputs `dy [S] f32, targets [N] i32, cu_seqlens [S + 1]`; output `d_nll [N] f32`: `−dy` of its sequence, with `mean`
/// divided by how many tokens of it have a target, and zero at a token without one.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceLogProbGrad {
    pub mean: bool,
}

impl OpRule for SequenceLogProbGrad {
    fn name(&self) -> &'static str {
        "sequence_log_prob_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3)?;
        let (_, count) = sequences(self.name(), inputs[2])?;
        expect_shape(self.name(), inputs, 0, &[count])?;
        Ok(vec![output(inputs[1].shape.dims(), DType::F32, Role::Loss, inputs[1].extent)])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(io.inputs[1].shape.elements() as f64, io.bytes())
    }
}

/// Log-probabilities above this are taken for it where odds are formed: the odds of what is certain have no end.
pub const LOG_PROB_MAX: f64 = -1e-7;

/// What the loss of a pair is, given the log-probabilities of its sequences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Preference {
    /// Direct preference optimisation: `−(1 − ε)·log σ(d) − ε·log σ(−d)`, where `d` is the difference of the rewards
    /// `β·(log p − log p of the reference)` and `ε` the share of pairs that are the wrong way round.
    Dpo { beta: f32, label_smoothing: f32 },
    /// Odds ratio preference optimisation: `−log p(chosen) − λ·log σ(log odds(chosen) − log odds(rejected))`, where
    /// `log odds = log p − log(1 − p)`. The rewards are `λ·log p`. Takes the means over tokens.
    Orpo { lambda: f32 },
}

impl Preference {
    pub fn has_reference(&self) -> bool {
        matches!(self, Self::Dpo { .. })
    }
}

/// Inputs `log_probs [S] f32, cu_seqlens [S + 1], scale [1] f32, loss [1] f64, stats [PAIR_STATS] f64, [reference [S] f32]`;
/// outputs `loss + scale·Σ loss of a pair, stats, [d_log_probs]`. The reference is there where the loss takes one.
///
/// Sequences lie in pairs, the chosen one first. The statistics are over rewards. A pair of which either sequence is empty
/// counts for nothing, and its gradient is zero.
#[derive(Debug, Clone, PartialEq)]
pub struct PreferenceLoss {
    pub preference: Preference,
    pub grad: bool,
}

impl OpRule for PreferenceLoss {
    fn name(&self) -> &'static str {
        "preference_loss"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let has_reference = self.preference.has_reference();
        expect_inputs(self.name(), inputs, 5 + usize::from(has_reference))?;
        let (stream, count) = sequences(self.name(), inputs[1])?;
        expect_shape(self.name(), inputs, 0, &[count])?;
        expect_shape(self.name(), inputs, 4, &[super::PAIR_STATS])?;
        if has_reference {
            expect_shape(self.name(), inputs, 5, &[count])?;
        }
        if inputs[0].extent != Extent::Sequences(stream) {
            let reason = format!("log-probabilities are for {:?}", inputs[0].extent);
            return Err(GraphError::Invalid { op: self.name(), reason });
        }
        let mut outputs = vec![same_as(inputs[3]), same_as(inputs[4])];
        outputs.extend(self.grad.then(|| Value { role: Role::Loss, ..same_as(inputs[0]) }));
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::Must { output: 0, input: 3 }, Alias::Must { output: 1, input: 4 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(50.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let log_probs = node.inputs[0];
        if !pass.needs(log_probs) {
            return Ok(());
        }
        let op = PreferenceLoss { grad: true, ..self.clone() };
        let d_log_probs = pass.rewrite_root(op, node, &[], ("d_log_probs", Class::NONE))?;
        pass.accumulate(log_probs, d_log_probs)
    }
}
