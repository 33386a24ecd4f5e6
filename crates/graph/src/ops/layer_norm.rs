//! Layer normalisation over the features of a token: the mean is taken away first.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, output, same_as};
use crate::{BackendTraits, Backward, DType, GraphError, Node, Role, Value, Work};

/// Inputs `x, [w], [b]`; outputs `normed, mean, rstd`.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    pub eps: f32,
    pub weight: bool,
    pub bias: bool,
}

impl OpRule for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let count = 1 + usize::from(self.weight) + usize::from(self.bias);
        expect_inputs(self.name(), inputs, count)?;
        let (rows, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
        for index in 1..count {
            expect_shape(self.name(), inputs, index, &[cols])?;
        }
        let normed = Value { role: Role::Activation, ..same_as(inputs[0]) };
        let statistic = output(&[rows], DType::F32, Role::Activation, inputs[0].extent);
        Ok(vec![normed, statistic.clone(), statistic])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::May { output: 0, input: 0 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(8.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(d_normed) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let x = node.inputs[0];
        let weight = self.weight.then(|| node.inputs[1]);
        let bias = self.bias.then(|| node.inputs[1 + usize::from(self.weight)]);
        let [weight_grad, bias_grad] = [weight, bias].map(|parameter| parameter.filter(|&p| pass.trainable(p)));
        let partial = pass.partial(x);
        let op = LayerNormGrad {
            weight: self.weight,
            accumulate: partial.is_some(),
            weight_grad: weight_grad.is_some(),
            bias_grad: bias_grad.is_some(),
        };
        let mut inputs = vec![x, node.outputs[1], node.outputs[2], d_normed];
        inputs.extend(weight.into_iter().chain(partial));
        let trained: Vec<_> = weight_grad.into_iter().chain(bias_grad).collect();
        let dx = pass.emit_with_parameters(op, inputs, &trained, Some(x))?;
        pass.replace(x, dx.expect("asked for"));
        Ok(())
    }
}

/// Inputs `x, mean, rstd, d_normed, [w], [dx so far], [dw], [db]`; outputs `dx, [dw], [db]`.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNormGrad {
    pub weight: bool,
    pub accumulate: bool,
    pub weight_grad: bool,
    pub bias_grad: bool,
}

impl LayerNormGrad {
    /// Parameters whose gradients it adds to.
    pub fn parameters(&self) -> usize {
        usize::from(self.weight_grad) + usize::from(self.bias_grad)
    }

    /// Where the first of their gradients so far is among the inputs.
    fn first_gradient(&self) -> usize {
        4 + usize::from(self.weight) + usize::from(self.accumulate)
    }
}

impl OpRule for LayerNormGrad {
    fn name(&self) -> &'static str {
        "layer_norm_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let first = self.first_gradient();
        expect_inputs(self.name(), inputs, first + self.parameters())?;
        let mut outputs = vec![Value { role: Role::Activation, ..same_as(inputs[3]) }];
        outputs.extend(inputs[first..].iter().map(|gradient| same_as(gradient)));
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let mut aliases = Vec::new();
        if self.accumulate {
            aliases.push(Alias::May { output: 0, input: 4 + usize::from(self.weight) });
        }
        aliases.push(Alias::May { output: 0, input: 3 });
        let first = self.first_gradient();
        aliases.extend((0..self.parameters()).map(|i| Alias::Must { output: 1 + i, input: first + i }));
        aliases
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(14.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }

    /// Partial sums of the parameters' gradients, one row per share of the tokens.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        traits.sum_parts() * self.parameters() * io.inputs[0].shape.cols() * 4
    }

    fn launches(&self, _io: &Io) -> usize {
        1 + self.parameters()
    }
}
