//! What happens once per update: the global norm, the clip factor, the step. Every optimizer leaves
//! the gradient zeroed, so the next micro-step can accumulate at once. Where the norm is not finite the clip factor is
//! not a number, and every optimizer leaves parameters, states and masters as they are.

mod adafactor;
mod adamw;
mod lion;
mod matrix_rows;
mod muon;
mod sgd;
mod square_sum;

pub use adafactor::{ADAFACTOR_PARTS, Adafactor, AdafactorOptimizer, AdafactorSettings};
pub use adamw::{AdamW, AdamWOptimizer};
pub use lion::{Lion, LionOptimizer};
pub use matrix_rows::MatrixRows;
pub use muon::{
    MUON_EPS, MomentumRamp, Muon, MuonOptimizer, MuonScale, MuonSettings, NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS,
};
pub use sgd::{Sgd, SgdOptimizer};
pub use square_sum::{SquareSum, TotalNorm};

use crate::op::{Alias, Io, OpRule, expect_shape, same_as};
use crate::{BackendTraits, GraphError, Value, Work};

/// Inputs `clip [2], grads…, [unscale [1]]`; output `clip = [norm, factor]` with
/// `factor = min(1, max_norm / (norm + 1e-6))`, NaN where the norm is not finite. Gradients of a scaled loss become
/// what they are by `unscale`: the norm is that of the unscaled ones, and the factor unscales them.
#[derive(Debug, Clone, PartialEq)]
pub struct GlobalNorm {
    pub max_norm: Option<f32>,
    pub scaled: bool,
}

impl GlobalNorm {
    /// How many of so many inputs are gradients; they begin behind the first.
    pub fn gradients(&self, inputs: usize) -> usize {
        inputs - 1 - usize::from(self.scaled)
    }
}

impl OpRule for GlobalNorm {
    fn name(&self) -> &'static str {
        "global_norm"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let least = 1 + usize::from(self.scaled);
        if inputs.len() < least {
            return Err(GraphError::InputCount { op: self.name(), expected: least, got: inputs.len() });
        }
        expect_shape(self.name(), inputs, 0, &[2])?;
        if self.scaled {
            expect_shape(self.name(), inputs, inputs.len() - 1, &[1])?;
        }
        Ok(vec![same_as(inputs[0])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::Must { output: 0, input: 0 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(io.bytes() / 2.0, io.bytes())
    }

    fn launches(&self, _io: &Io) -> usize {
        6
    }

    /// Partial sums of each gradient and their sum, in double precision.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        io.inputs.len() * (traits.sum_parts().max(64) + 1) * 8
    }
}

/// Under which name the rate of updates with states in codes is kept, whatever the rule: finding codes is most of it.
pub const CODED_UPDATE: &str = "coded_update";

fn rate_of_update(name: &'static str, io: &Io) -> &'static str {
    if io.inputs.iter().any(|input| input.storage.blocks.is_some()) { CODED_UPDATE } else { name }
}

/// Numbers an update takes from the host: the learning rate, two of the optimizer's own, and the update `t`.
pub const HYPER_LEN: usize = 4;
