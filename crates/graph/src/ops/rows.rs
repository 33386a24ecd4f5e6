//! From a row for each token to one for each sequence: where only a sequence's last token counts, what works on rows
//! alone need not be done for the others. And runs of rows, for what works on rows alone and would take too much memory for
//! all of them at once.

use crate::op::{Io, OpRule, expect_inputs, expect_shape, output};
use crate::{Backward, Extent, GraphError, Node, Role, StreamId, Value, ValueId, Work};

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

/// Input `x [N, …]` with a row for each token; outputs its runs of `rows` rows, the last of what is left. Rows may be of
/// integers.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitRows {
    pub rows: usize,
    /// How many runs that makes.
    pub runs: usize,
}

impl SplitRows {
    pub fn new(all: usize, rows: usize) -> Self {
        Self { rows, runs: all.div_ceil(rows) }
    }
}

impl OpRule for SplitRows {
    fn name(&self) -> &'static str {
        "split_rows"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 1)?;
        let mut dims = inputs[0].shape.dims().to_vec();
        let all = dims[0];
        let whole = self.rows > 0 && self.runs == all.div_ceil(self.rows);
        let (Extent::Tokens(stream), true) = (inputs[0].extent, whole) else {
            let reason = format!("{all} rows with {:?} are not {} runs of {}", inputs[0].extent, self.runs, self.rows);
            return Err(GraphError::Invalid { op: self.name(), reason });
        };
        let runs = (0..all).step_by(self.rows).map(|start| {
            dims[0] = self.rows.min(all - start);
            output(&dims, inputs[0].dtype(), Role::Activation, Extent::Run { stream, start })
        });
        Ok(runs.collect())
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(0.0, io.bytes())
    }

    /// A copy for each run.
    fn launches(&self, io: &Io) -> usize {
        io.outputs.len()
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let grads: Vec<ValueId> = node.outputs.iter().filter_map(|&run| pass.grad(run)).collect();
        match grads.len() {
            0 => return Ok(()),
            found if found < node.outputs.len() => {
                let value = format!("{found} of {} runs", node.outputs.len());
                return Err(GraphError::NotDifferentiable { op: self.name(), value });
            }
            _ => {}
        }
        let dx = pass.emit_one(JoinRows, &grads, node.inputs[0])?;
        pass.accumulate(node.inputs[0], dx)
    }
}

/// Inputs: the runs of a stream's rows, in order and without a gap; output `[N, …]`: all of them.
#[derive(Debug, Clone, PartialEq)]
pub struct JoinRows;

impl OpRule for JoinRows {
    fn name(&self) -> &'static str {
        "join_rows"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let invalid = |reason: String| Err(GraphError::Invalid { op: self.name(), reason });
        let Some(&&Value { extent: Extent::Run { stream, .. }, shape, .. }) = inputs.first() else {
            return invalid("no runs of rows".to_owned());
        };
        let (mut dims, mut end) = (shape.dims().to_vec(), 0);
        for run in inputs {
            let follows = run.extent == Extent::Run { stream, start: end };
            if !follows || run.shape.dims()[1..] != dims[1..] || run.dtype() != inputs[0].dtype() {
                return invalid(format!("{} with {:?} does not follow row {end} of {shape}", run.shape, run.extent));
            }
            end += run.shape.rows();
        }
        dims[0] = end;
        Ok(vec![output(&dims, inputs[0].dtype(), Role::Activation, Extent::Tokens(stream))])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(0.0, io.bytes())
    }

    /// A copy for each run.
    fn launches(&self, io: &Io) -> usize {
        io.inputs.len()
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let split = SplitRows { rows: pass.value(node.inputs[0]).shape.rows(), runs: node.inputs.len() };
        let grads = pass.emit_all(split, &[dy], &node.inputs)?;
        node.inputs.iter().zip(grads).try_for_each(|(&run, grad)| pass.accumulate(run, grad))
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
