//! Adam with decoupled weight decay.

use std::ops::Range;

use super::{HYPER_LEN, rate_of_update};
use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::optimizer::{Matrix, Optimizer, OptimizerSettings, State, StateStorage, UpdateOperands};
use crate::{Class, GPU_UPDATES_PER_LAUNCH, Graph, GraphError, Shape, Value, Work};

/// Decoupled weight decay. `hyper` holds `lr, 1 - β1^t, 1 - β2^t, t`. These and `1 - β` are taken in double precision from
/// β as given (0.999, not its float32 neighbour).
/// Inputs `p, g, m, v, hyper, clip, [master]`; outputs `p, g = 0, m, v, [master]`.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamW {
    pub beta1: f64,
    pub beta2: f64,
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

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(15.0 * io.inputs[0].shape.elements() as f64, io.bytes())
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
        Some(4..6)
    }
}

/// AdamW as a run's optimizer: two moments of the parameter's shape. Its β are 0.9 and 0.999 unless given, its ε 1e-8.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamWOptimizer {
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    state: StateStorage,
}

impl AdamWOptimizer {
    pub fn new(settings: &OptimizerSettings) -> Self {
        let OptimizerSettings { betas, eps, weight_decay, state, .. } = *settings;
        let [beta1, beta2] = betas.unwrap_or([0.9, 0.999]);
        Self { beta1, beta2, eps: eps.unwrap_or(1e-8), weight_decay, state }
    }
}

impl Optimizer for AdamWOptimizer {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn states(&self, shape: Shape, _matrices: &[Matrix]) -> Vec<State> {
        vec![self.state.signed("m", shape), self.state.unsigned("v", shape)]
    }

    fn update(&self, graph: &mut Graph, operands: &UpdateOperands) -> Result<(), GraphError> {
        let UpdateOperands { parameter, gradient, states, hyper, clip, master, .. } = operands;
        let op = AdamW {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps as f32,
            weight_decay: self.weight_decay as f32,
            master: master.is_some(),
        };
        let mut inputs = vec![*parameter, *gradient, states[0], states[1], *hyper, *clip];
        inputs.extend(master);
        let unnamed = vec![("", Class::NONE); 4 + usize::from(master.is_some())];
        graph.apply_all(op, &inputs, &unnamed).map(|_| ())
    }

    fn hyper(&self, step: u64, lr: f64) -> [f32; HYPER_LEN] {
        let correction = |beta: f64| (1.0 - beta.powi(step.min(i32::MAX as u64) as i32)) as f32;
        [lr as f32, correction(self.beta1), correction(self.beta2), step as f32]
    }
}
