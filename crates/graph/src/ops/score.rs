//! Scores for each sequence, from the row of its last token: the loss of preferring one sequence to another, and that of
//! putting each into one of several classes.

use super::LossGrad;
use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::{BackendTraits, Backward, Class, Extent, GraphError, Node, Product, Role, Value, Work};

/// What is counted over pairs: pairs, pairs in which the chosen sequence has the higher score, and the sums of the
/// differences, of the chosen sequences' scores and of the others'.
pub const PAIR_STATS: usize = 5;

/// Inputs `hidden [S, D], w [1, D], cu_seqlens [S + 1], scale [1] f32, loss [1] f64, stats [PAIR_STATS] f64,
/// [margins [S] f32], [dw]`; outputs `loss + scale·Σ loss of a pair, stats, [d_hidden, [dw]]`. The loss of a pair is
/// `−log σ(chosen − rejected − margin) + centring·(chosen + rejected)²`.
///
/// Sequences lie in pairs, the chosen one first, which has the pair's margin; without `margins` it is zero. A sequence's
/// score is `w·hidden[sequence]`. A pair of which either sequence is empty counts for nothing, and its rows of `d_hidden`
/// are zero.
#[derive(Debug, Clone, PartialEq)]
pub struct PairLoss {
    /// Scores that are only compared may drift; this holds them around zero.
    pub centring: f32,
    pub margins: bool,
    pub grad: Option<LossGrad>,
}

impl PairLoss {
    /// Position of the margins among the inputs.
    pub fn margins_input(&self) -> Option<usize> {
        self.margins.then_some(6)
    }

    /// Position of the weight's gradient among the inputs.
    pub fn weight_grad_input(&self) -> Option<usize> {
        self.grad.is_some_and(|grad| grad.weight).then_some(6 + usize::from(self.margins))
    }
}

impl OpRule for PairLoss {
    fn name(&self) -> &'static str {
        "pair_loss"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let weight_grad = self.weight_grad_input();
        expect_inputs(self.name(), inputs, 6 + usize::from(self.margins) + usize::from(weight_grad.is_some()))?;
        let (sequences, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
        expect_shape(self.name(), inputs, 1, &[1, cols])?;
        expect_shape(self.name(), inputs, 2, &[sequences + 1])?;
        expect_shape(self.name(), inputs, 5, &[PAIR_STATS])?;
        expect_sequences(self.name(), inputs[0])?;
        if let Some(at) = self.margins_input() {
            expect_shape(self.name(), inputs, at, &[sequences])?;
        }
        let mut outputs = vec![same_as(inputs[4]), same_as(inputs[5])];
        if self.grad.is_some() {
            outputs.push(Value { role: Role::Loss, ..same_as(inputs[0]) });
        }
        outputs.extend(weight_grad.map(|at| same_as(inputs[at])));
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let mut aliases = vec![Alias::Must { output: 0, input: 4 }, Alias::Must { output: 1, input: 5 }];
        if self.grad.is_some() {
            aliases.push(Alias::May { output: 2, input: 0 });
        }
        aliases.extend(self.weight_grad_input().map(|input| Alias::Must { output: 3, input }));
        aliases
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(6.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }

    fn workspace_role(&self) -> Role {
        Role::Loss
    }

    fn launches(&self, _io: &Io) -> usize {
        4
    }

    /// A number for each sequence: its score, then the score's gradient.
    fn workspace_bytes(&self, io: &Io, _traits: &BackendTraits) -> usize {
        io.inputs[0].shape.rows() * size_of::<f32>()
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let (hidden, weight) = (node.inputs[0], node.inputs[1]);
        let weight_grad = pass.trainable(weight);
        if !weight_grad && !pass.needs(hidden) {
            return Ok(());
        }
        let op = PairLoss { grad: Some(LossGrad { weight: weight_grad }), ..self.clone() };
        let parameters: &[_] = if weight_grad { &[weight] } else { &[] };
        let d_hidden = pass.rewrite_root(op, node, parameters, ("d_hidden", Class::NONE))?;
        pass.accumulate(hidden, d_hidden)
    }
}

/// What `ClassLoss` counts: labelled sequences, and those of them that are right.
pub const CLASS_STATS: usize = 2;

/// Inputs `hidden [S, D], w [C, D], labels [S] i32, scale [1] f32, loss [1] f64, stats [CLASS_STATS] f64, [dw]`;
/// outputs `loss + scale·Σ cross entropy, stats, [d_hidden, [dw]]`.
///
/// A sequence's logits are `w·hidden[sequence]`. It is right where its label has the highest of them, the first one of
/// equals. A label below zero counts for nothing, and its row of `d_hidden` is zero.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassLoss {
    pub grad: Option<LossGrad>,
}

impl ClassLoss {
    fn weight_grad(&self) -> bool {
        self.grad.is_some_and(|grad| grad.weight)
    }
}

impl OpRule for ClassLoss {
    fn name(&self) -> &'static str {
        "class_loss"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 6 + usize::from(self.weight_grad()))?;
        let (sequences, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
        expect_shape(self.name(), inputs, 1, &[inputs[1].shape.rows(), cols])?;
        expect_shape(self.name(), inputs, 2, &[sequences])?;
        expect_shape(self.name(), inputs, 5, &[CLASS_STATS])?;
        expect_sequences(self.name(), inputs[0])?;
        if inputs[2].extent != inputs[0].extent {
            let reason = format!("labels are for {:?}, rows for {:?}", inputs[2].extent, inputs[0].extent);
            return Err(GraphError::Invalid { op: self.name(), reason });
        }
        let mut outputs = vec![same_as(inputs[4]), same_as(inputs[5])];
        if self.grad.is_some() {
            outputs.push(Value { role: Role::Loss, ..same_as(inputs[0]) });
        }
        outputs.extend(inputs.get(6).map(|dw| same_as(dw)));
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let mut aliases = vec![Alias::Must { output: 0, input: 4 }, Alias::Must { output: 1, input: 5 }];
        if self.grad.is_some() {
            aliases.push(Alias::May { output: 2, input: 0 });
        }
        if self.weight_grad() {
            aliases.push(Alias::Must { output: 3, input: 6 });
        }
        aliases
    }

    /// Logits and gradients are products of small matrices.
    fn work(&self, io: &Io) -> Vec<Work> {
        let (rows, dim, classes) = (io.inputs[0].shape.rows(), io.inputs[0].shape.cols(), io.inputs[1].shape.rows());
        let flops = 2.0 * rows as f64 * dim as f64 * classes as f64;
        let bytes = (io.inputs[0].bytes() + io.inputs[1].bytes()) as f64;
        let dtype = io.inputs[0].dtype();
        let product = |shape| Work::Product(Product { flops, bytes, dtype, shape, tokens: rows, low_rank: None });
        let mut work = vec![product([rows, classes, dim])];
        if self.grad.is_some() {
            work.push(product([rows, dim, classes]));
        }
        if self.weight_grad() {
            work.push(product([classes, dim, rows]));
        }
        // The logits are written, read, and replaced by their gradient.
        let logits = (rows * classes * size_of::<f32>()) as f64;
        work.push(Work::Memory { flops: 0.0, bytes: 3.0 * logits });
        work
    }

    fn workspace_role(&self) -> Role {
        Role::Loss
    }

    fn launches(&self, _io: &Io) -> usize {
        4
    }

    /// The logits, then their gradient.
    fn workspace_bytes(&self, io: &Io, _traits: &BackendTraits) -> usize {
        io.inputs[0].shape.rows() * io.inputs[1].shape.rows() * size_of::<f32>()
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let (hidden, weight) = (node.inputs[0], node.inputs[1]);
        let weight_grad = pass.trainable(weight);
        if !weight_grad && !pass.needs(hidden) {
            return Ok(());
        }
        let op = ClassLoss { grad: Some(LossGrad { weight: weight_grad }) };
        let parameters: &[_] = if weight_grad { &[weight] } else { &[] };
        let d_hidden = pass.rewrite_root(op, node, parameters, ("d_hidden", Class::NONE))?;
        pass.accumulate(hidden, d_hidden)
    }
}

/// Checks that there is a row for each sequence.
fn expect_sequences(op: &'static str, hidden: &Value) -> Result<(), GraphError> {
    if matches!(hidden.extent, Extent::Sequences(_)) {
        return Ok(());
    }
    let reason = format!("the hidden state has a row for each of {:?}", hidden.extent);
    Err(GraphError::Invalid { op, reason })
}
