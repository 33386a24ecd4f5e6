//! Low-rank adapters of the layers that share an input. Their first matrices lie one below the other, so that one
//! `Linear` makes the low-rank rows of all; here is the way back from those to each layer's own columns.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, rows_of, same_as};
use crate::{BackendTraits, Backward, GraphError, Node, Product, Value, ValueId, Work};

/// The output columns of one adapted layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    pub start: usize,
    pub len: usize,
}

/// What both directions know: the scale, the columns each adapter writes to, in order, and all columns there are.
#[derive(Debug, Clone, PartialEq)]
pub struct Adapters {
    pub alpha: f32,
    pub blocks: Vec<Columns>,
    pub total: usize,
}

impl Adapters {
    /// Rows of the second matrices, one below the other.
    pub fn rows(&self) -> usize {
        self.blocks.iter().map(|block| block.len).sum()
    }

    /// Each block, with the first row of its second matrix and the first of its low-rank columns.
    pub fn places(&self, rank: usize) -> impl Iterator<Item = (Columns, usize, usize)> {
        self.blocks.iter().enumerate().scan(0, move |row, (index, &block)| {
            let first = *row;
            *row += block.len;
            Some((block, first, index * rank))
        })
    }

    pub(crate) fn check(&self, op: &'static str, low_rank: &Value, b: &Value) -> Result<(), GraphError> {
        let mut end = 0;
        for block in &self.blocks {
            if block.start < end || block.len == 0 || block.start + block.len > self.total {
                let reason = format!("{block:?} does not lie behind column {end} of {}", self.total);
                return Err(GraphError::Invalid { op, reason });
            }
            end = block.start + block.len;
        }
        if low_rank.shape.cols() != self.blocks.len() * b.shape.cols() || b.shape.rows() != self.rows() {
            let reason = format!("{} and {} do not belong to {:?}", low_rank.shape, b.shape, self.blocks);
            return Err(GraphError::Invalid { op, reason });
        }
        Ok(())
    }

    pub(crate) fn flops(&self, tokens: usize, rank: usize) -> f64 {
        2.0 * tokens as f64 * self.rows() as f64 * rank as f64
    }

    /// Of so short a depth that the wide matrix bounds it: `times` products with the second matrices.
    fn work(&self, name: &'static str, io: &Io, b: usize, times: f64) -> Vec<Work> {
        let (tokens, rank) = (io.inputs[0].shape.rows(), io.inputs[b].shape.cols());
        vec![Work::Product(Product {
            flops: times * self.flops(tokens, rank),
            bytes: io.bytes(),
            dtype: io.inputs[0].dtype(),
            shape: [tokens, self.total, rank],
            tokens,
            low_rank: Some(name),
        })]
    }

    /// Carries the gradient of what the adapters add on to their low-rank rows and second matrices.
    pub(crate) fn backward(
        &self,
        op: &'static str,
        dy: ValueId,
        [low_rank, b]: [ValueId; 2],
        pass: &mut Backward,
    ) -> Result<(), GraphError> {
        if !pass.trainable(b) {
            return Err(GraphError::NotDifferentiable { op, value: "a frozen second matrix".to_owned() });
        }
        let op = AdapterUpGrad(self.clone());
        let grad = pass.emit_with_parameters(op, vec![dy, low_rank, b], &[b], Some(low_rank))?;
        pass.accumulate(low_rank, grad.expect("asked for"))
    }
}

/// Whether adapters of this rank are added inside the gated activation: it reads low-rank rows in fours, and larger ranks
/// are work for matrix products.
pub fn added_inside(rank: usize) -> bool {
    rank <= 64 && rank.is_multiple_of(4)
}

/// Inputs `h [N, n·r], b [Σ len, r]`; output `y [N, total]`, which is `α·h_j·b_jᵀ` in the columns of block `j` and
/// zero in those of none.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterUp(pub Adapters);

impl OpRule for AdapterUp {
    fn name(&self) -> &'static str {
        "adapter_up"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 2)?;
        self.0.check(self.name(), inputs[0], inputs[1])?;
        Ok(vec![rows_of(inputs[0], self.0.total, inputs[0].dtype())])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        self.0.work(self.name(), io, 1, 1.0)
    }

    fn workspace_bytes(&self, _io: &Io, traits: &BackendTraits) -> usize {
        traits.matmul_workspace_bytes
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        self.0.backward(self.name(), dy, [node.inputs[0], node.inputs[1]], pass)
    }
}

/// Inputs `dy [N, total], h [N, n·r], b [Σ len, r], db`; outputs `dh`, which is `α·dy_j·b_j` in the low-rank columns of
/// block `j`, and `db_j + α·dy_jᵀ·h_j`. One operator, because both read all of `dy` and little else.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterUpGrad(pub Adapters);

impl OpRule for AdapterUpGrad {
    fn name(&self) -> &'static str {
        "adapter_up_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let name = self.name();
        expect_inputs(name, inputs, 4)?;
        self.0.check(name, inputs[1], inputs[2])?;
        expect_shape(name, inputs, 0, &[inputs[1].shape.rows(), self.0.total])?;
        expect_shape(name, inputs, 3, &[inputs[2].shape.rows(), inputs[2].shape.cols()])?;
        Ok(vec![rows_of(inputs[1], inputs[1].shape.cols(), inputs[1].dtype()), same_as(inputs[3])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::Must { output: 1, input: 3 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        self.0.work(self.name(), io, 2, 2.0)
    }

    fn workspace_bytes(&self, _io: &Io, traits: &BackendTraits) -> usize {
        traits.matmul_workspace_bytes
    }
}
