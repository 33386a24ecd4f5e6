//! Lion: the sign of an interpolated momentum.

use std::ops::Range;

use super::{HYPER_LEN, rate_of_update};
use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::optimizer::{Matrix, Optimizer, OptimizerSettings, State, StateStorage, UpdateOperands};
use crate::{Class, GPU_UPDATES_PER_LAUNCH, Graph, GraphError, Shape, Value, Work};

/// The step goes by the sign of `β1·m + (1 - β1)·g`, zero where that is zero; the momentum then takes the gradient in by
/// `β2`. Decoupled weight decay. `hyper` holds `lr` first.
/// Inputs `p, g, m, hyper, clip, [master]`; outputs `p, g = 0, m, [master]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Lion {
    pub beta1: f64,
    pub beta2: f64,
    pub weight_decay: f32,
    pub master: bool,
}

impl OpRule for Lion {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 5 + usize::from(self.master))?;
        for index in [1, 2] {
            expect_shape(self.name(), inputs, index, inputs[0].shape.dims())?;
        }
        expect_shape(self.name(), inputs, 3, &[HYPER_LEN])?;
        let mut outputs: Vec<Value> = inputs[..3].iter().map(|v| same_as(v)).collect();
        outputs.extend(inputs.get(5).map(|v| same_as(v)));
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let mut aliases: Vec<Alias> = (0..3).map(|i| Alias::Must { output: i, input: i }).collect();
        if self.master {
            aliases.push(Alias::Must { output: 3, input: 5 });
        }
        aliases
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(8.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }

    fn launches(&self, _io: &Io) -> usize {
        1
    }

    fn tensors_per_launch(&self) -> usize {
        GPU_UPDATES_PER_LAUNCH
    }

    fn rate_name(&self, io: &Io) -> &'static str {
        rate_of_update(self.name(), io)
    }

    fn shared_numbers(&self) -> Option<Range<usize>> {
        Some(3..5)
    }
}

/// Lion as a run's optimizer: one momentum of the parameter's shape. Its β are 0.9 and 0.99 unless given.
#[derive(Debug, Clone, PartialEq)]
pub struct LionOptimizer {
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    state: StateStorage,
}

impl LionOptimizer {
    pub fn new(settings: &OptimizerSettings) -> Self {
        let OptimizerSettings { betas, weight_decay, state, .. } = *settings;
        let [beta1, beta2] = betas.unwrap_or([0.9, 0.99]);
        Self { beta1, beta2, weight_decay, state }
    }
}

impl Optimizer for LionOptimizer {
    fn name(&self) -> &'static str {
        "lion"
    }

    fn states(&self, shape: Shape, _matrices: &[Matrix]) -> Vec<State> {
        vec![self.state.signed("m", shape)]
    }

    fn update(&self, graph: &mut Graph, operands: &UpdateOperands) -> Result<(), GraphError> {
        let UpdateOperands { parameter, gradient, states, hyper, clip, master, .. } = operands;
        let op = Lion {
            beta1: self.beta1,
            beta2: self.beta2,
            weight_decay: self.weight_decay as f32,
            master: master.is_some(),
        };
        let mut inputs = vec![*parameter, *gradient, states[0], *hyper, *clip];
        inputs.extend(master);
        let unnamed = vec![("", Class::NONE); 3 + usize::from(master.is_some())];
        graph.apply_all(op, &inputs, &unnamed).map(|_| ())
    }

    fn hyper(&self, step: u64, lr: f64) -> [f32; HYPER_LEN] {
        [lr as f32, 1.0, 1.0, step as f32]
    }
}
