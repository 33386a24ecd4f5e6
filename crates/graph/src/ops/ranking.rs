//! Scores of candidates inside a sequence, and losses over the order in which they put them.

use super::LossGrad;
use super::rows::sequences;
use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::{BackendTraits, Backward, Class, Extent, GraphError, Node, Role, Value, Work};

/// What is counted over lists: lists, and the sums of their NDCG, reciprocal rank, precision of the first, and loss.
pub const LIST_STATS: usize = 5;

/// What the loss of a list is, given the candidates' scores `s` and relevances `r`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranking {
    /// The negative log-likelihood of the order by relevance, where each place is drawn from the softmax over the scores of
    /// those not yet placed. Equal relevances stand in the order of the text.
    ListMle,
    /// The cross entropy of the softmax of the scores, relative to the softmax of the relevances.
    ListNet,
    /// The mean of `−log σ(s_i − s_j)` over pairs with `r_i > r_j`; zero if there are none.
    Pairwise,
}

/// Inputs `hidden [N, D], w [1, D], marks [N] f32, cu_seqlens [S + 1], scale [1] f32, loss [1] f64,
/// stats [LIST_STATS] f64, [dw]`; outputs `loss + scale·Σ loss of a list, stats, [d_hidden, [dw]]`.
///
/// A token whose mark is not below zero is a candidate: the mark is its relevance, `w·hidden[token]` its score. The
/// candidates of a sequence are a list; one with fewer than two counts for nothing. Rows of `d_hidden` that are no
/// candidate's are zero.
///
/// NDCG: relevance is the gain, divided by `log2(1 + rank)`; over the first `top` ranks, and relative to the best order.
/// It is zero where no candidate is relevant, which is to have a relevance above zero. Candidates of equal score stand in
/// the order of the text.
#[derive(Debug, Clone, PartialEq)]
pub struct ListLoss {
    pub ranking: Ranking,
    /// Ranks that NDCG looks at; all if there is no limit.
    pub top: Option<u32>,
    pub grad: Option<LossGrad>,
}

impl ListLoss {
    /// Position of the weight's gradient among the inputs.
    pub fn weight_grad_input(&self) -> Option<usize> {
        self.grad.is_some_and(|grad| grad.weight).then_some(7)
    }
}

impl OpRule for ListLoss {
    fn name(&self) -> &'static str {
        "list_loss"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let weight_grad = self.weight_grad_input();
        expect_inputs(self.name(), inputs, 7 + usize::from(weight_grad.is_some()))?;
        let (tokens, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
        expect_shape(self.name(), inputs, 1, &[1, cols])?;
        expect_shape(self.name(), inputs, 2, &[tokens])?;
        expect_shape(self.name(), inputs, 6, &[LIST_STATS])?;
        let (stream, _) = sequences(self.name(), inputs[3])?;
        if inputs[0].extent != Extent::Tokens(stream) || inputs[2].extent != inputs[0].extent {
            let reason = format!("rows are for {:?}, marks for {:?}", inputs[0].extent, inputs[2].extent);
            return Err(GraphError::Invalid { op: self.name(), reason });
        }
        let mut outputs = vec![same_as(inputs[5]), same_as(inputs[6])];
        if self.grad.is_some() {
            outputs.push(Value { role: Role::Loss, ..same_as(inputs[0]) });
        }
        outputs.extend(weight_grad.map(|at| same_as(inputs[at])));
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let mut aliases = vec![Alias::Must { output: 0, input: 5 }, Alias::Must { output: 1, input: 6 }];
        if self.grad.is_some() {
            aliases.push(Alias::May { output: 2, input: 0 });
        }
        aliases.extend(self.weight_grad_input().map(|input| Alias::Must { output: 3, input }));
        aliases
    }

    /// Candidates are few: what costs is to look for them and to write zeros for all others.
    fn work(&self, io: &Io) -> Vec<Work> {
        let written = if self.grad.is_some() { io.inputs[0].bytes() } else { 0 };
        Work::memory(0.0, (written + 2 * io.inputs[2].bytes()) as f64)
    }

    fn workspace_role(&self) -> Role {
        Role::Loss
    }

    fn launches(&self, _io: &Io) -> usize {
        5
    }

    /// For each token a number in double precision, a score, its gradient, its rank by relevance, and a place among the
    /// candidates; for each sequence how many candidates it has and what it adds to the statistics.
    fn workspace_bytes(&self, io: &Io, _traits: &BackendTraits) -> usize {
        let (tokens, sequences) = (io.inputs[0].shape.rows(), io.inputs[3].shape.rows() - 1);
        tokens * (size_of::<f64>() + 4 * size_of::<f32>())
            + sequences * (LIST_STATS * size_of::<f64>() + size_of::<f64>())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let (hidden, weight) = (node.inputs[0], node.inputs[1]);
        let weight_grad = pass.trainable(weight);
        if !weight_grad && !pass.needs(hidden) {
            return Ok(());
        }
        let op = ListLoss { grad: Some(LossGrad { weight: weight_grad }), ..self.clone() };
        let parameters: &[_] = if weight_grad { &[weight] } else { &[] };
        let d_hidden = pass.rewrite_root(op, node, parameters, ("d_candidates", Class::NONE))?;
        pass.accumulate(hidden, d_hidden)
    }
}
