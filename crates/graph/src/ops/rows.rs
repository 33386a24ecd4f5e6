//! From a row for each token to one for each sequence: where only a sequence's last token counts, what works on rows
//! alone need not be done for the others.

use crate::op::{Io, OpRule, expect_inputs, expect_shape, output};
use crate::{Backward, Extent, GraphError, Node, Role, StreamId, Value, Work};

/// Inputs `x [N, …], cu_seqlens [S + 1]`; output `[S, …]`: the row of each sequence's last token, zeros where a sequence
/// is empty. Rows may be of integers.
#[derive(Debug, Clone, PartialEq)]
pub struct LastRows;

impl OpRule for LastRows {
    fn name(&self) -> &'static str {
        "last_rows"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 2)?;
        let (stream, sequences) = sequences(self.name(), inputs[1])?;
        let mut dims = inputs[0].shape.dims().to_vec();
        dims[0] = sequences;
        Ok(vec![output(&dims, inputs[0].dtype(), Role::Activation, Extent::Sequences(stream))])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(0.0, 2.0 * io.outputs[0].bytes() as f64)
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let (x, boundaries) = (node.inputs[0], node.inputs[1]);
        let op = LastRowsGrad { tokens: pass.value(x).shape.rows() };
        let dx = pass.emit_one(op, &[dy, boundaries], x)?;
        pass.accumulate(x, dx)
    }
}

/// Inputs `dy [S, D], cu_seqlens [S + 1]`; output `dx [tokens, D]`, which is `dy`'s rows at the sequences' last tokens and
/// zero at all others.
#[derive(Debug, Clone, PartialEq)]
pub struct LastRowsGrad {
    pub tokens: usize,
}

impl OpRule for LastRowsGrad {
    fn name(&self) -> &'static str {
        "last_rows_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 2)?;
        let cols = inputs[0].shape.cols();
        let (stream, sequences) = sequences(self.name(), inputs[1])?;
        expect_shape(self.name(), inputs, 0, &[sequences, cols])?;
        Ok(vec![output(&[self.tokens, cols], inputs[0].dtype(), Role::Activation, Extent::Tokens(stream))])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(0.0, (2 * io.inputs[0].bytes() + io.outputs[0].bytes()) as f64)
    }
}

/// Of which stream the boundaries are, and of how many sequences.
pub(super) fn sequences(op: &'static str, boundaries: &Value) -> Result<(StreamId, usize), GraphError> {
    let reason = || format!("{} with {:?} are no boundaries", boundaries.shape, boundaries.extent);
    match (boundaries.extent, boundaries.shape.dims()) {
        (Extent::Boundaries(stream), &[ends]) if ends > 0 => Ok((stream, ends - 1)),
        _ => Err(GraphError::Invalid { op, reason: reason() }),
    }
}
