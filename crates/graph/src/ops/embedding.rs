//! Looking tokens up in a table, and summing gradients back into it.

use crate::op::{Alias, Io, OpRule, expect_inputs, rows_of, same_as};
use crate::{BackendTraits, Backward, DType, GraphError, Node, Value, Work};

/// Inputs `table [V, D], tokens [N]`; output `[N, D]` in the given type, times `scale`. A `padding` token gives its row no
/// gradient.
#[derive(Debug, Clone, PartialEq)]
pub struct Embed {
    pub dtype: DType,
    pub scale: f32,
    pub padding: Option<u32>,
}

impl OpRule for Embed {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 2)?;
        Ok(vec![rows_of(inputs[1], inputs[0].shape.cols(), self.dtype)])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(0.0, 2.0 * io.outputs[0].bytes() as f64)
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let (table, tokens) = (node.inputs[0], node.inputs[1]);
        match pass.grad(node.outputs[0]) {
            Some(dx) if pass.trainable(table) => {
                let op = EmbedGrad { scale: self.scale, padding: self.padding };
                pass.accumulate_parameter(table, |grad| (op.into(), vec![dx, tokens, grad]))
            }
            _ => Ok(()),
        }
    }
}

/// Inputs `dx [N, D], tokens [N], d_table [V, D]`; output the table's gradient with `scale·dx` added, tokens
/// in order, `padding` left out.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedGrad {
    pub scale: f32,
    pub padding: Option<u32>,
}

impl OpRule for EmbedGrad {
    fn name(&self) -> &'static str {
        "embed_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3)?;
        Ok(vec![same_as(inputs[2])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::Must { output: 0, input: 2 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(io.inputs[0].shape.elements() as f64, 3.0 * io.inputs[0].bytes() as f64)
    }

    fn launches(&self, _io: &Io) -> usize {
        4
    }

    /// Where words are summed in parallel: the tokens in order of their words, and the rows they stand in.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        if traits.partial_rows > 0 { 2 * io.inputs[1].shape.rows() * 4 } else { 0 }
    }
}
