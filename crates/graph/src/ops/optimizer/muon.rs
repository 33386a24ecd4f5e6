//! Muon: momentum, made orthogonal.

use super::{HYPER_LEN, MatrixRows};
use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::optimizer::{Matrix, Optimizer, OptimizerSettings, State, StateStorage, UpdateOperands};
use crate::{BackendTraits, Class, Graph, GraphError, Product, Shape, Value, Work};

/// Steps of Newton and Schulz.
pub const NEWTON_SCHULZ_STEPS: usize = 5;
/// Their polynomial `a·X + b·(X·Xᵀ)·X + c·(X·Xᵀ)²·X`: steepest at zero, so that few steps do.
pub const NEWTON_SCHULZ: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// No matrix is divided by a smaller norm.
pub const MUON_EPS: f64 = 1e-7;

/// What the learning rate of a matrix is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MuonScale {
    /// √max(1, rows / columns), so that every output moves as far.
    #[default]
    Original,
    /// 0.2·√max(rows, columns): steps as large as AdamW's, whose learning rate and weight decay then serve.
    MatchRmsAdamW,
}

impl MuonScale {
    pub fn factor(self, rows: usize, cols: usize) -> f64 {
        match self {
            MuonScale::Original => (rows as f64 / cols as f64).max(1.0).sqrt(),
            MuonScale::MatchRmsAdamW => 0.2 * (rows.max(cols) as f64).sqrt(),
        }
    }
}

/// `m ← μ·m + (1 - μ)·g`; the step is `(1 - μ)·g + μ·m`, or `m` without Nesterov, of each matrix over its norm, through
/// five steps of Newton and Schulz in the parameter's type. Decoupled weight decay by the unscaled learning rate.
/// `hyper` holds `lr, μ`. Inputs `p, g, m, hyper, clip, [master]`; outputs `p, g = 0, m, [master]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Muon {
    pub nesterov: bool,
    pub weight_decay: f32,
    pub scale: MuonScale,
    /// Rows of each matrix in the parameter.
    pub matrices: MatrixRows,
    pub master: bool,
}

impl Muon {
    /// Elements of scratch that the largest matrix takes: for itself and what it becomes, and for `X·Xᵀ` and the
    /// polynomial of that.
    pub fn scratch(&self, cols: usize) -> [usize; 4] {
        let largest = |elements: fn(usize, usize) -> usize| {
            let all = self.matrices.iter().map(|rows| elements(rows.len(), cols));
            all.max().unwrap_or(0).next_multiple_of(SCRATCH_ALIGNMENT)
        };
        let (whole, square) = (largest(|rows, cols| rows * cols), largest(|rows, cols| rows.min(cols).pow(2)));
        [whole, whole, square, square]
    }
}

/// Parts of the scratch begin at multiples of so many elements, 256 bytes of the narrowest type.
const SCRATCH_ALIGNMENT: usize = 128;

impl OpRule for Muon {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 5 + usize::from(self.master))?;
        for index in [1, 2] {
            expect_shape(self.name(), inputs, index, inputs[0].shape.dims())?;
        }
        expect_shape(self.name(), inputs, 3, &[HYPER_LEN])?;
        if inputs[0].shape.rank() != 2 {
            let reason = format!(
                "updates matrices, and a parameter has shape {}: give it to a group with another optimizer",
                inputs[0].shape
            );
            return Err(GraphError::Invalid { op: self.name(), reason });
        }
        self.matrices.check(self.name(), &inputs[0].shape)?;
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
        let (cols, dtype) = (io.inputs[0].shape.cols(), io.inputs[0].dtype());
        let mut work = Work::memory(12.0 * io.inputs[0].shape.elements() as f64, 2.0 * io.bytes());
        for rows in self.matrices.iter().map(|rows| rows.len()) {
            let (short, long) = (rows.min(cols), rows.max(cols));
            for depth in [[short, short, long], [short, short, short], [short, long, short]] {
                let [m, n, k] = depth;
                let elements = m * k + k * n + m * n;
                work.push(Work::Product(Product {
                    flops: NEWTON_SCHULZ_STEPS as f64 * 2.0 * m as f64 * n as f64 * k as f64,
                    bytes: (NEWTON_SCHULZ_STEPS * elements * dtype.bytes()) as f64,
                    dtype,
                    shape: depth,
                    tokens: NEWTON_SCHULZ_STEPS * m,
                    low_rank: None,
                }));
            }
        }
        work
    }

    /// The norm in two, the momentum, the division, four for each step, the parameter.
    fn launches(&self, _io: &Io) -> usize {
        self.matrices.len() * (5 + 4 * NEWTON_SCHULZ_STEPS)
    }

    /// Beside products' own scratch: four matrices in the parameter's type, and partial sums of the norm.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        let parameter = io.inputs[0];
        let elements: usize = self.scratch(parameter.shape.cols()).iter().sum();
        traits.matmul_workspace_bytes + elements * parameter.dtype().bytes() + (1 + traits.sum_parts().max(64)) * 8
    }
}

/// Muon as a run's optimizer: one momentum of the parameter's shape. μ is 0.95 unless given, and may begin lower.
#[derive(Debug, Clone, PartialEq)]
pub struct MuonOptimizer {
    momentum: f64,
    settings: MuonSettings,
    weight_decay: f64,
    state: StateStorage,
}

/// What only Muon takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MuonSettings {
    pub nesterov: bool,
    pub scale: MuonScale,
    pub ramp: Option<MomentumRamp>,
}

impl Default for MuonSettings {
    fn default() -> Self {
        Self { nesterov: true, scale: MuonScale::Original, ramp: None }
    }
}

/// The momentum grows evenly from its value at the first update to its final value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MomentumRamp {
    pub from: f64,
    pub updates: u64,
}

impl MuonOptimizer {
    pub fn new(settings: &OptimizerSettings) -> Self {
        let OptimizerSettings { momentum, weight_decay, state, muon, .. } = *settings;
        Self { momentum: momentum.unwrap_or(0.95), settings: muon, weight_decay, state }
    }

    /// For update `step`, counted from 1.
    fn momentum(&self, step: u64) -> f64 {
        match self.settings.ramp {
            Some(MomentumRamp { from, updates }) if step <= updates => {
                from + (self.momentum - from) * (step.saturating_sub(1) as f64 / updates as f64)
            }
            _ => self.momentum,
        }
    }
}

impl Optimizer for MuonOptimizer {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn matrices_only(&self) -> bool {
        true
    }

    fn states(&self, shape: Shape, _matrices: &[Matrix]) -> Vec<State> {
        vec![self.state.signed("m", shape)]
    }

    fn update(&self, graph: &mut Graph, operands: &UpdateOperands) -> Result<(), GraphError> {
        let UpdateOperands { parameter, gradient, states, hyper, clip, master, matrices } = operands;
        let op = Muon {
            nesterov: self.settings.nesterov,
            weight_decay: self.weight_decay as f32,
            scale: self.settings.scale,
            matrices: MatrixRows::new(matrices),
            master: master.is_some(),
        };
        let mut inputs = vec![*parameter, *gradient, states[0], *hyper, *clip];
        inputs.extend(master);
        let unnamed = vec![("", Class::NONE); 3 + usize::from(master.is_some())];
        graph.apply_all(op, &inputs, &unnamed).map(|_| ())
    }

    fn hyper(&self, step: u64, lr: f64) -> [f32; HYPER_LEN] {
        [lr as f32, self.momentum(step) as f32, 1.0, step as f32]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn momentum_grows_over_the_ramp_and_stays() {
        let ramp = Some(MomentumRamp { from: 0.85, updates: 300 });
        let muon = MuonSettings { ramp, ..MuonSettings::default() };
        let optimizer = MuonOptimizer::new(&OptimizerSettings { muon, ..OptimizerSettings::default() });
        for (step, expected) in [(1, 0.85), (151, 0.90), (301, 0.95), (10_000, 0.95)] {
            let [lr, momentum, ..] = optimizer.hyper(step, 0.02);
            assert_eq!((lr, momentum), (0.02, expected), "update {step}");
        }
        let constant = MuonOptimizer::new(&OptimizerSettings { momentum: Some(0.9), ..OptimizerSettings::default() });
        assert_eq!(constant.hyper(1, 0.02)[1], 0.9);
    }
}
