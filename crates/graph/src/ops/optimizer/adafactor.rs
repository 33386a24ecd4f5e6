//! Adafactor: second moments of a matrix from those of its rows and columns.

use super::{HYPER_LEN, MatrixRows};
use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, same_as};
use crate::optimizer::{Matrix, Optimizer, OptimizerSettings, State, StateStorage, UpdateOperands};
use crate::{BackendTraits, Class, DType, Graph, GraphError, Shape, Value, Work};

/// Parts of a matrix's rows in which a GPU sums its columns.
pub const ADAFACTOR_PARTS: usize = 64;

/// Each matrix on its own; `u = g / √v` with `v` of the squares `g² + eps`, of a matrix from `row` and `col`, the means of
/// its rows and columns: `v[i][j] = row[i]·col[j] / mean(row)`. A `u` whose root mean square is above the threshold is
/// scaled down to it. The step is `α·u`, or `m`, a mean of these; `α` is the rate, times the root mean square of the matrix
/// (no less than `least_scale`) if so asked. Decoupled weight decay by `α`.
/// `hyper` holds `rate, β2ᵗ, 1 - β2ᵗ`, where `β2ᵗ` is that of this update.
/// Inputs `p, g, hyper, clip`, then `row [rows], col [matrices, cols]` of matrices or `v` of vectors, `[m], [master]`;
/// outputs `p, g = 0`, and all from the states on.
#[derive(Debug, Clone, PartialEq)]
pub struct Adafactor {
    /// `None`: the rate is that of the step itself.
    pub least_scale: Option<f32>,
    /// Added to the squares of gradients.
    pub eps: f32,
    pub clip_threshold: f32,
    pub beta1: Option<f64>,
    pub weight_decay: f32,
    /// Rows of each matrix in the parameter, or of each vector.
    pub matrices: MatrixRows,
    /// Whether they are matrices.
    pub factored: bool,
    pub master: bool,
}

impl Adafactor {
    const STATES_AT: usize = 4;

    fn states(&self) -> usize {
        1 + usize::from(self.factored) + usize::from(self.beta1.is_some())
    }

    /// The output that is the mean of steps.
    pub fn momentum_output(&self) -> Option<usize> {
        self.beta1.map(|_| 2 + self.states() - 1)
    }

    pub fn master_output(&self) -> Option<usize> {
        self.master.then_some(2 + self.states())
    }
}

impl OpRule for Adafactor {
    fn name(&self) -> &'static str {
        "adafactor"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, Self::STATES_AT + self.states() + usize::from(self.master))?;
        let shape = inputs[0].shape;
        expect_shape(self.name(), inputs, 1, shape.dims())?;
        expect_shape(self.name(), inputs, 2, &[HYPER_LEN])?;
        match self.factored {
            true => {
                expect_shape(self.name(), inputs, Self::STATES_AT, &[shape.rows()])?;
                expect_shape(self.name(), inputs, Self::STATES_AT + 1, &[self.matrices.len(), shape.cols()])?;
            }
            false => expect_shape(self.name(), inputs, Self::STATES_AT, shape.dims())?,
        }
        self.matrices.check(self.name(), &shape)?;
        Ok(inputs[..2].iter().chain(&inputs[Self::STATES_AT..]).map(|v| same_as(v)).collect())
    }

    fn aliases(&self) -> Vec<Alias> {
        let kept = self.states() + usize::from(self.master);
        let pair = |(output, input)| Alias::Must { output, input };
        [(0, 0), (1, 1)].into_iter().chain((0..kept).map(|i| (2 + i, Self::STATES_AT + i))).map(pair).collect()
    }

    /// The gradient is read for rows, for columns and for the step, and what becomes of it once more.
    fn work(&self, io: &Io) -> Vec<Work> {
        let gradient = io.inputs[1].bytes() as f64;
        Work::memory(16.0 * io.inputs[0].shape.elements() as f64, io.bytes() + 4.0 * gradient)
    }

    fn launches(&self, _io: &Io) -> usize {
        8 * self.matrices.len()
    }

    /// On a GPU: sums of columns in parts, sums of squares of the parameter and of the step, and four numbers.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        match traits.partial_rows {
            0 => 0,
            parts => ADAFACTOR_PARTS * io.inputs[0].shape.cols() * 4 + 2 * parts * 8 + 16,
        }
    }
}

/// What only Adafactor takes, as transformers names it. A rate is given, or follows from the update alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdafactorSettings {
    /// The rate is `1 / √t`, at most 0.01, whatever the run's is.
    pub relative_step: bool,
    /// That rate is at most `1e-6·t`.
    pub warmup_init: bool,
    /// Rates are multiples of the root mean square of each matrix.
    pub scale_parameter: bool,
    /// No matrix counts as smaller.
    pub least_scale: f64,
    pub clip_threshold: f64,
    /// `β2ᵗ` is `1 - t^decay_rate`.
    pub decay_rate: f64,
    pub beta1: Option<f64>,
}

impl Default for AdafactorSettings {
    fn default() -> Self {
        Self {
            relative_step: true,
            warmup_init: false,
            scale_parameter: true,
            least_scale: 1e-3,
            clip_threshold: 1.0,
            decay_rate: -0.8,
            beta1: None,
        }
    }
}

/// Adafactor as a run's optimizer. Its ε, 1e-30 unless given, is added to squares. A mean of steps in eight bits is kept in
/// bfloat16.
#[derive(Debug, Clone, PartialEq)]
pub struct AdafactorOptimizer {
    settings: AdafactorSettings,
    eps: f64,
    weight_decay: f64,
    state: StateStorage,
}

impl AdafactorOptimizer {
    pub fn new(settings: &OptimizerSettings) -> Self {
        let OptimizerSettings { eps, weight_decay, state, adafactor, .. } = *settings;
        let state = if state == StateStorage::Int8 { StateStorage::Bfloat16 } else { state };
        Self { settings: adafactor, eps: eps.unwrap_or(1e-30), weight_decay, state }
    }
}

impl Optimizer for AdafactorOptimizer {
    fn name(&self) -> &'static str {
        "adafactor"
    }

    fn states(&self, shape: Shape, matrices: &[Matrix]) -> Vec<State> {
        let float32 = |name, dims: &[usize]| State { name, shape: Shape::new(dims), storage: DType::F32.into() };
        let mut states = match shape.rank() {
            2 => vec![float32("row", &[shape.rows()]), float32("col", &[matrices.len(), shape.cols()])],
            _ => vec![float32("v", shape.dims())],
        };
        states.extend(self.settings.beta1.map(|_| self.state.signed("m", shape)));
        states
    }

    fn update(&self, graph: &mut Graph, operands: &UpdateOperands) -> Result<(), GraphError> {
        let UpdateOperands { parameter, gradient, states, hyper, clip, master, matrices } = operands;
        let op = self.op(&graph.value(*parameter).shape, matrices, master.is_some());
        let mut inputs = vec![*parameter, *gradient, *hyper, *clip];
        inputs.extend(states);
        inputs.extend(master);
        let unnamed = vec![("", Class::NONE); inputs.len() - 2];
        graph.apply_all(op, &inputs, &unnamed).map(|_| ())
    }

    fn hyper(&self, step: u64, lr: f64) -> [f32; HYPER_LEN] {
        let AdafactorSettings { relative_step, warmup_init, decay_rate, .. } = self.settings;
        let t = step as f64;
        let most = if warmup_init { 1e-6 * t } else { 1e-2 };
        let rate = if relative_step { most.min(1.0 / t.sqrt()) } else { lr };
        let complement = t.powf(decay_rate);
        [rate as f32, (1.0 - complement) as f32, complement as f32, step as f32]
    }
}

impl AdafactorOptimizer {
    /// The update of a parameter.
    pub fn op(&self, shape: &Shape, matrices: &[Matrix], master: bool) -> Adafactor {
        let AdafactorSettings { scale_parameter, least_scale, clip_threshold, beta1, .. } = self.settings;
        Adafactor {
            least_scale: scale_parameter.then_some(least_scale as f32),
            eps: self.eps as f32,
            clip_threshold: clip_threshold as f32,
            beta1,
            weight_decay: self.weight_decay as f32,
            matrices: MatrixRows::new(matrices),
            factored: shape.rank() == 2,
            master,
        }
    }
}
