//! RMS normalisation over the features of a token, alone or joined with the residual sum, and over
//! each head of the queries and keys. Where there is a weight, features are multiplied by `offset + w`: families such as
//! Gemma store what their factors are above one.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, output, same_as};
use crate::ops::Heads;
use crate::{BackendTraits, Backward, DType, GraphError, Node, Op, Role, Value, ValueId, Work};

/// What kernels add to a weight for an offset. No offset is minus zero, which leaves every weight as it is: zero would
/// turn the sign of a weight that is minus zero.
pub fn weight_addend(offset: f32) -> f32 {
    if offset == 0.0 { -0.0 } else { offset }
}

/// Inputs `x, [h], [w]`; outputs `[x + h], normed, rstd`. With `residual`, `x + h` is the first output.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNorm {
    pub eps: f32,
    pub weight: bool,
    /// Added to the weight where there is one.
    pub offset: f32,
    pub residual: bool,
}

impl RmsNorm {
    /// With a weight that is the factor itself, and no residual sum.
    pub const fn new(eps: f32) -> Self {
        Self { eps, weight: true, offset: 0.0, residual: false }
    }
}

impl OpRule for RmsNorm {
    fn name(&self) -> &'static str {
        if self.residual { "add_rms_norm" } else { "rms_norm" }
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let (residual, weight) = (usize::from(self.residual), usize::from(self.weight));
        expect_inputs(self.name(), inputs, 1 + residual + weight)?;
        let (rows, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
        if self.residual {
            expect_shape(self.name(), inputs, 1, &[rows, cols])?;
        }
        if self.weight {
            expect_shape(self.name(), inputs, 1 + residual, &[cols])?;
        }
        let activation = Value { role: Role::Activation, ..same_as(inputs[0]) };
        let rstd = output(&[rows], DType::F32, Role::Activation, inputs[0].extent);
        let mut outputs = vec![activation; 1 + residual];
        outputs.push(rstd);
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        if self.residual {
            vec![
                Alias::May { output: 0, input: 1 },
                Alias::May { output: 0, input: 0 },
                Alias::May { output: 1, input: 0 },
            ]
        } else {
            vec![Alias::May { output: 0, input: 0 }]
        }
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(5.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }

    /// With the residual sum at hand, its norm needs neither of the summands.
    fn rebuild(&self, node: &Node, output: usize) -> Option<(Op, Vec<ValueId>)> {
        if !self.residual || output == 0 {
            return None;
        }
        let mut inputs = vec![node.outputs[0]];
        inputs.extend(&node.inputs[2..]);
        Some((RmsNorm { residual: false, ..self.clone() }.into(), inputs))
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let residual = usize::from(self.residual);
        let summed = if self.residual { node.outputs[0] } else { node.inputs[0] };
        let weight = self.weight.then(|| node.inputs[1 + residual]);
        let d_normed = pass.grad(node.outputs[residual]);
        let upstream = if self.residual { pass.grad(node.outputs[0]) } else { None };
        let total = match d_normed {
            None => upstream,
            Some(d_normed) => {
                let weight_grad = weight.filter(|&w| pass.trainable(w));
                let partial = if self.residual { upstream } else { pass.partial(summed) };
                let op = RmsNormGrad {
                    weight: self.weight,
                    offset: self.offset,
                    weight_grad: weight_grad.is_some(),
                    accumulate: partial.is_some(),
                };
                let mut inputs = vec![summed, node.outputs[residual + 1], d_normed];
                inputs.extend(weight);
                inputs.extend(partial);
                let dx = match weight_grad {
                    Some(w) => pass.emit_with_parameters(op, inputs, &[w], Some(summed))?,
                    None => Some(pass.emit_one(op, &inputs, summed)?),
                };
                if !self.residual {
                    pass.replace(summed, dx.expect("asked for"));
                    return Ok(());
                }
                dx
            }
        };
        if let (true, Some(total)) = (self.residual, total) {
            pass.accumulate(node.inputs[0], total)?;
            pass.accumulate(node.inputs[1], total)?;
        }
        Ok(())
    }
}

/// Inputs `x, rstd, d_normed, [w], [dx so far], [dw]`; outputs `dx, [dw]`.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNormGrad {
    pub weight: bool,
    pub offset: f32,
    pub weight_grad: bool,
    pub accumulate: bool,
}

impl OpRule for RmsNormGrad {
    fn name(&self) -> &'static str {
        "rms_norm_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let count = 3 + [self.weight, self.accumulate, self.weight_grad].iter().filter(|&&b| b).count();
        expect_inputs(self.name(), inputs, count)?;
        let mut outputs = vec![Value { role: Role::Activation, ..same_as(inputs[2]) }];
        if self.weight_grad {
            outputs.push(same_as(inputs[count - 1]));
        }
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let mut aliases = Vec::new();
        if self.accumulate {
            aliases.push(Alias::May { output: 0, input: 3 + usize::from(self.weight) });
        }
        aliases.push(Alias::May { output: 0, input: 2 });
        if self.weight_grad {
            let input = 3 + usize::from(self.weight) + usize::from(self.accumulate);
            aliases.push(Alias::Must { output: 1, input });
        }
        aliases
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(10.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }

    /// Partial sums of the weight's gradient, one row per share of the tokens.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        if self.weight_grad { traits.sum_parts() * io.inputs[0].shape.cols() * 4 } else { 0 }
    }
}

/// RMS norm of every query head and key head inside a fused `[N, (q + 2·kv)·head_dim]` row; values
/// pass through. Inputs `qkv, [wq], [wk]`; outputs `qkv', rstd [N, q + kv]`.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadNorm {
    pub heads: Heads,
    pub eps: f32,
    pub weight: bool,
    /// Added to both weights where there are any.
    pub offset: f32,
}

impl HeadNorm {
    /// With weights that are the factors themselves.
    pub const fn new(heads: Heads, eps: f32) -> Self {
        Self { heads, eps, weight: true, offset: 0.0 }
    }
}

impl OpRule for HeadNorm {
    fn name(&self) -> &'static str {
        "head_norm"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, if self.weight { 3 } else { 1 })?;
        let rows = inputs[0].shape.rows();
        expect_shape(self.name(), inputs, 0, &[rows, self.heads.fused_cols()])?;
        let rstd = output(&[rows, self.heads.query + self.heads.kv], DType::F32, Role::Activation, inputs[0].extent);
        Ok(vec![same_as(inputs[0]), rstd])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::May { output: 0, input: 0 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(5.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let qkv = node.inputs[0];
        let weights = &node.inputs[1..];
        let trained = weights.iter().filter(|&&w| pass.trainable(w)).count();
        if trained == 1 {
            let reason = "its two weights can only be trained or frozen together".into();
            return Err(GraphError::Invalid { op: self.name(), reason });
        }
        let weight_grad = trained == 2;
        let op = HeadNormGrad { heads: self.heads, weight: self.weight, offset: self.offset, weight_grad };
        let mut inputs = vec![qkv, node.outputs[1], dy];
        inputs.extend(weights);
        let dx = if weight_grad {
            pass.emit_with_parameters(op, inputs, weights, Some(qkv))?.expect("asked for")
        } else {
            pass.emit_one(op, &inputs, qkv)?
        };
        pass.accumulate(qkv, dx)
    }
}

/// Inputs `qkv, rstd, d_qkv', [wq, wk], [dwq, dwk]`; outputs `d_qkv, [dwq, dwk]`.
#[derive(Debug, Clone, PartialEq)]
pub struct HeadNormGrad {
    pub heads: Heads,
    pub weight: bool,
    pub offset: f32,
    pub weight_grad: bool,
}

impl OpRule for HeadNormGrad {
    fn name(&self) -> &'static str {
        "head_norm_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3 + 2 * usize::from(self.weight) + 2 * usize::from(self.weight_grad))?;
        let mut outputs = vec![same_as(inputs[2])];
        if self.weight_grad {
            outputs.extend([same_as(inputs[5]), same_as(inputs[6])]);
        }
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let mut aliases = vec![Alias::May { output: 0, input: 2 }];
        if self.weight_grad {
            aliases.extend([Alias::Must { output: 1, input: 5 }, Alias::Must { output: 2, input: 6 }]);
        }
        aliases
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(10.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }

    fn workspace_bytes(&self, _io: &Io, traits: &BackendTraits) -> usize {
        if self.weight_grad { traits.sum_parts() * 2 * self.heads.head_dim * 4 } else { 0 }
    }
}
