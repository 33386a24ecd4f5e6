//! Stochastic gradient descent with momentum.

use std::ops::Range;

use super::{HYPER_LEN, rate_of_update};
use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::optimizer::{Matrix, Optimizer, OptimizerSettings, State, StateStorage, UpdateOperands};
use crate::{Class, GPU_UPDATES_PER_LAUNCH, Graph, GraphError, Shape, Value, Work};

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

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(4.0 * io.inputs[0].shape.elements() as f64, io.bytes())
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
        Some(2..4)
    }
}

/// SGD as a run's optimizer: a momentum of the parameter's shape, unless that is zero.
#[derive(Debug, Clone, PartialEq)]
pub struct SgdOptimizer {
    momentum: f64,
    weight_decay: f64,
    state: StateStorage,
}

impl SgdOptimizer {
    pub fn new(settings: &OptimizerSettings) -> Self {
        let OptimizerSettings { momentum, weight_decay, state, .. } = *settings;
        Self { momentum: momentum.unwrap_or(0.0), weight_decay, state }
    }
}

impl Optimizer for SgdOptimizer {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn states(&self, shape: Shape, _matrices: &[Matrix]) -> Vec<State> {
        (self.momentum != 0.0).then(|| self.state.signed("m", shape)).into_iter().collect()
    }

    fn update(&self, graph: &mut Graph, operands: &UpdateOperands) -> Result<(), GraphError> {
        let UpdateOperands { parameter, gradient, states, hyper, clip, master, .. } = operands;
        let op =
            Sgd { momentum: self.momentum as f32, weight_decay: self.weight_decay as f32, master: master.is_some() };
        let mut inputs = vec![*parameter, *gradient, *hyper, *clip];
        inputs.extend(states);
        inputs.extend(master);
        let unnamed = vec![("", Class::NONE); 2 + states.len() + usize::from(master.is_some())];
        graph.apply_all(op, &inputs, &unnamed).map(|_| ())
    }

    fn hyper(&self, step: u64, lr: f64) -> [f32; HYPER_LEN] {
        [lr as f32, 1.0, 1.0, step as f32]
    }
}
