//! A bias of attention scores by the distance between key and query, learned for buckets of distances.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, output, same_as};
use crate::{Backward, DType, Extent, GraphError, Node, Role, Value, Work};

/// Inputs `table [buckets, heads], bucket_of [distances] i32`; output `[heads, distances] f32`: for each head and distance
/// the entry of its bucket, as `Attention` takes it.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionBias;

impl OpRule for PositionBias {
    fn name(&self) -> &'static str {
        "position_bias"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 2)?;
        let dims = [inputs[0].shape.cols(), inputs[1].shape.rows()];
        Ok(vec![output(&dims, DType::F32, Role::Activation, Extent::Fixed)])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(0.0, io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let (table, bucket_of) = (node.inputs[0], node.inputs[1]);
        match pass.grad(node.outputs[0]) {
            Some(d_bias) if pass.trainable(table) => {
                pass.accumulate_parameter(table, |grad| (PositionBiasGrad.into(), vec![d_bias, bucket_of, grad]))
            }
            _ => Ok(()),
        }
    }
}

/// Inputs `d_bias [heads, distances] f32, bucket_of [distances], d_table [buckets, heads]`; output the table's gradient
/// with each bucket's distances added, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionBiasGrad;

impl OpRule for PositionBiasGrad {
    fn name(&self) -> &'static str {
        "position_bias_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3)?;
        expect_shape(self.name(), inputs, 0, &[inputs[2].shape.cols(), inputs[1].shape.rows()])?;
        Ok(vec![same_as(inputs[2])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::Must { output: 0, input: 2 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(io.inputs[0].shape.elements() as f64, io.bytes())
    }
}
