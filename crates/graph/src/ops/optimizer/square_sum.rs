//! The global norm where gradients do not all exist at once: a sum for each as soon as it is complete, the norm at the end.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::{BackendTraits, GraphError, Value, Work};

/// Inputs `guard [2], sums [n] f64, g`; outputs `guard, sums`, with the sum of g's squares in place `index` of the sums,
/// made as [`super::GlobalNorm`] makes it. `guard` has the form of a clip factor, `[spoilt, 1]`: both are NaN from the first
/// gradient on whose norm is not finite, so every update that takes it leaves parameters and states as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct SquareSum {
    pub index: usize,
}

impl OpRule for SquareSum {
    fn name(&self) -> &'static str {
        "square_sum"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3)?;
        expect_shape(self.name(), inputs, 0, &[2])?;
        if self.index >= inputs[1].shape.elements() {
            let reason = format!("there are {} sums, and this is number {}", inputs[1].shape.elements(), self.index);
            return Err(GraphError::Invalid { op: self.name(), reason });
        }
        Ok(inputs[..2].iter().map(|value| same_as(value)).collect())
    }

    fn aliases(&self) -> Vec<Alias> {
        (0..2).map(|i| Alias::Must { output: i, input: i }).collect()
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        let gradient = io.inputs[2];
        Work::memory(2.0 * gradient.shape.elements() as f64, gradient.bytes() as f64)
    }

    /// Partial sums, in double precision.
    fn workspace_bytes(&self, _io: &Io, traits: &BackendTraits) -> usize {
        traits.sum_parts().max(64) * 8
    }
}

/// Inputs `clip [2], sums [n] f64`; output `clip = [norm, 1]`, with NaN for the 1 where the norm is not finite.
#[derive(Debug, Clone, PartialEq)]
pub struct TotalNorm;

impl OpRule for TotalNorm {
    fn name(&self) -> &'static str {
        "total_norm"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 2)?;
        expect_shape(self.name(), inputs, 0, &[2])?;
        Ok(vec![same_as(inputs[0])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::Must { output: 0, input: 0 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(io.inputs[1].shape.elements() as f64, io.bytes())
    }

    fn launches(&self, _io: &Io) -> usize {
        1
    }
}
