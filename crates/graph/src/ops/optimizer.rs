//! What happens once per update: the global norm, the clip factor, the step. Every optimizer leaves
//! the gradient zeroed, so the next micro-step can accumulate at once. Where the norm is not finite the clip factor is
//! not a number, and every optimizer leaves parameters, states and masters as they are.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::{Cost, GraphError, Target, Value};

/// Inputs `clip [2], grads…`; output `clip = [norm, factor]` with `factor = min(1, max_norm / (norm + 1e-6))`,
/// NaN where the norm is not finite.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalNorm {
    pub max_norm: Option<f32>,
}

impl OpRule for GlobalNorm {
    fn name(&self) -> &'static str {
        "global_norm"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        if inputs.is_empty() {
            return Err(GraphError::InputCount { op: self.name(), expected: 1, got: 0 });
        }
        expect_shape(self.name(), inputs, 0, &[2])?;
        Ok(vec![same_as(inputs[0])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::Must { output: 0, input: 0 }]
    }

    fn cost(&self, io: &Io) -> Cost {
        Cost::vector(io.bytes() / 2.0, io.bytes())
    }

    /// Partial sums of each gradient, in double precision.
    fn workspace_bytes(&self, io: &Io, target: &Target) -> usize {
        io.inputs.len() * target.sum_parts().max(64) * 8
    }
}

/// `hyper` holds `lr, 1 - β1^t, 1 - β2^t, t`, the powers taken in double precision; `t` is the update.
pub const HYPER_LEN: usize = 4;

/// Decoupled weight decay. `1 - β` is taken from the decimal as written (0.999, not its float32 neighbour),
/// in keeping with the bias corrections in `hyper`.
/// Inputs `p, g, m, v, hyper, clip, [master]`; outputs `p, g = 0, m, v, [master]`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamW {
    pub beta1: f32,
    pub beta2: f32,
    pub eps: f32,
    pub weight_decay: f32,
    pub master: bool,
}

impl OpRule for AdamW {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 6 + usize::from(self.master))?;
        for index in [1, 2, 3] {
            expect_shape(self.name(), inputs, index, inputs[0].shape.dims())?;
        }
        expect_shape(self.name(), inputs, 4, &[HYPER_LEN])?;
        let mut outputs: Vec<Value> = inputs[..4].iter().map(|v| same_as(v)).collect();
        outputs.extend(inputs.get(6).map(|v| same_as(v)));
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let mut aliases: Vec<Alias> = (0..4).map(|i| Alias::Must { output: i, input: i }).collect();
        if self.master {
            aliases.push(Alias::Must { output: 4, input: 6 });
        }
        aliases
    }

    fn cost(&self, io: &Io) -> Cost {
        Cost::vector(15.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }
}

/// Weight decay joins the gradient before the momentum.
/// Inputs `p, g, hyper, clip, [momentum], [master]`; outputs `p, g = 0, [momentum], [master]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Sgd {
    /// Zero: plain SGD, no state.
    pub momentum: f32,
    pub weight_decay: f32,
    pub master: bool,
}

impl OpRule for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 4 + usize::from(self.momentum != 0.0) + usize::from(self.master))?;
        expect_shape(self.name(), inputs, 1, inputs[0].shape.dims())?;
        let mut outputs: Vec<Value> = inputs[..2].iter().map(|v| same_as(v)).collect();
        outputs.extend(inputs[4..].iter().map(|v| same_as(v)));
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let extra = usize::from(self.momentum != 0.0) + usize::from(self.master);
        let mut aliases: Vec<Alias> = (0..2).map(|i| Alias::Must { output: i, input: i }).collect();
        aliases.extend((0..extra).map(|i| Alias::Must { output: 2 + i, input: 4 + i }));
        aliases
    }

    fn cost(&self, io: &Io) -> Cost {
        Cost::vector(4.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }
}
