//! Optimizers: each owns the memory it keeps for a parameter, the operators of its update, and the numbers it takes from
//! the host for every update.

use std::fmt::Debug;
use std::sync::Arc;

use crate::ops::{
    AdafactorOptimizer, AdafactorSettings, AdamWOptimizer, HYPER_LEN, LionOptimizer, MuonOptimizer, MuonSettings,
    SgdOptimizer,
};
use crate::{BlockFormat, Code, DType, Graph, GraphError, Scales, Shape, Storage, ValueId};

/// A matrix inside a parameter, as model files have it: q, k and v lie in one parameter and are three matrices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    pub first_row: usize,
    pub shape: Shape,
}

/// Memory that an optimizer keeps for a parameter, of any shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Stands before the parameter's name in that of the slot.
    pub name: &'static str,
    pub shape: Shape,
    pub storage: Storage,
}

/// The values of one parameter's update.
#[derive(Debug, Clone)]
pub struct UpdateOperands<'a> {
    pub parameter: ValueId,
    pub gradient: ValueId,
    /// In the order of [`Optimizer::states`].
    pub states: Vec<ValueId>,
    pub hyper: ValueId,
    pub clip: ValueId,
    /// The float32 copy of a sixteen-bit parameter.
    pub master: Option<ValueId>,
    pub matrices: &'a [Matrix],
}

/// How parameters are updated.
pub trait Optimizer: Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// Whether it takes no other parameters than matrices.
    fn matrices_only(&self) -> bool {
        false
    }

    /// What it keeps for a parameter of this shape, in which these matrices lie one behind another.
    fn states(&self, shape: Shape, matrices: &[Matrix]) -> Vec<State>;

    /// Adds the operators that update one parameter, leave its gradient zeroed and its states current.
    fn update(&self, graph: &mut Graph, operands: &UpdateOperands) -> Result<(), GraphError>;

    /// What `hyper` holds for update `step`, counted from 1.
    fn hyper(&self, step: u64, lr: f64) -> [f32; HYPER_LEN];
}

/// How states of the parameter's shape are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StateStorage {
    #[default]
    Float32,
    /// Rounded stochastically, so that small steps are kept on average.
    Bfloat16,
    /// Codes of eight bits, each block of 256 with a float32 scale. Small states stay in float32.
    Int8,
}

/// States of fewer elements gain nothing from eight bits, and norms and biases are sensitive to them.
const INT8_ELEMENTS_MIN: usize = 4096;
const INT8_BLOCK: usize = 256;

impl StateStorage {
    /// A state whose numbers have both signs.
    pub fn signed(self, name: &'static str, shape: Shape) -> State {
        State { name, shape, storage: self.storage(shape, Code::DynamicSigned) }
    }

    /// A state without negative numbers.
    pub fn unsigned(self, name: &'static str, shape: Shape) -> State {
        State { name, shape, storage: self.storage(shape, Code::DynamicUnsigned) }
    }

    fn storage(self, shape: Shape, code: Code) -> Storage {
        match self {
            Self::Int8 if shape.elements() >= INT8_ELEMENTS_MIN => {
                let blocks = BlockFormat { elements: INT8_BLOCK, code, scales: Scales::F32 };
                Storage { element: DType::F32, blocks: Some(blocks) }
            }
            Self::Float32 | Self::Int8 => DType::F32.into(),
            Self::Bfloat16 => DType::BF16.into(),
        }
    }
}

/// What a run may say about its optimizer; each takes what it knows. What is not given is the optimizer's own default.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct OptimizerSettings {
    pub betas: Option<[f64; 2]>,
    pub eps: Option<f64>,
    pub weight_decay: f64,
    pub momentum: Option<f64>,
    pub state: StateStorage,
    pub muon: MuonSettings,
    pub adafactor: AdafactorSettings,
}

type Make = fn(&OptimizerSettings) -> Arc<dyn Optimizer>;

/// Every optimizer by its name in a run file.
pub const OPTIMIZERS: &[(&str, Make)] = &[
    ("adamw", |settings| Arc::new(AdamWOptimizer::new(settings))),
    ("sgd", |settings| Arc::new(SgdOptimizer::new(settings))),
    ("lion", |settings| Arc::new(LionOptimizer::new(settings))),
    ("muon", |settings| Arc::new(MuonOptimizer::new(settings))),
    ("adafactor", |settings| Arc::new(AdafactorOptimizer::new(settings))),
];

pub fn optimizer_named(name: &str, settings: &OptimizerSettings) -> Option<Arc<dyn Optimizer>> {
    OPTIMIZERS.iter().find(|(known, _)| *known == name).map(|(_, make)| make(settings))
}
