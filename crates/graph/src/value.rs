use std::fmt;

use crate::GraphError;
use crate::storage::Storage;
use crate::stream::StreamId;

/// How one element is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    F64,
    F32,
    BF16,
    F16,
    I32,
    U32,
    U8,
    /// Of products alone: their factors' codes.
    E4m3,
}

impl DType {
    pub fn bytes(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::BF16 | DType::F16 => 2,
            DType::U8 | DType::E4m3 => 1,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::U8 => "u8",
            DType::E4m3 => "e4m3",
        }
    }
}

/// Up to four dimensions, row-major.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; 4],
    rank: u8,
}

impl Shape {
    pub fn new(dims: &[usize]) -> Self {
        assert!(dims.len() <= 4, "shapes have at most four dimensions");
        let mut all = [1; 4];
        all[..dims.len()].copy_from_slice(dims);
        Self { dims: all, rank: dims.len() as u8 }
    }

    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// The product of all dimensions. Tables and graphs admit no shape whose product is not a number.
    pub fn elements(&self) -> usize {
        self.checked_elements().expect("checked when the value was added")
    }

    pub fn checked_elements(&self) -> Option<usize> {
        self.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))
    }

    /// First dimension; tokens for activations, or sequences.
    pub fn rows(&self) -> usize {
        self.dims[0]
    }

    /// Elements in one row: everything but the first dimension.
    pub fn cols(&self) -> usize {
        self.dims[1..].iter().product()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

/// What a value is for; decides the line of the memory table on which its bytes appear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Weight,
    Adapter,
    Gradient,
    OptimizerState,
    Activation,
    /// Belongs to the loss: its result and the gradient it hands back.
    Loss,
    /// Keys and values of sequences that grow. A slot of this role keeps its content only from one schedule that names it to
    /// the next; all others may use its memory.
    Cache,
    /// Written by the host before a schedule runs: tokens, positions, tables, hyperparameters.
    Input,
    Workspace,
}

/// How much of the first dimension is in use when a micro-batch is not full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Always all of it.
    Fixed,
    /// As many rows as the stream has tokens.
    Tokens(StreamId),
    /// Those of the stream's tokens that lie in a run of them: the one that begins at `start` and is as long as the value.
    Run { stream: StreamId, start: usize },
    /// As many rows as the stream has sequences.
    Sequences(StreamId),
    /// One row more than the stream has sequences: their boundaries.
    Boundaries(StreamId),
}

impl Extent {
    /// Of the stream that bears the loss; the only one of a decoder.
    pub const TOKENS: Extent = Extent::Tokens(StreamId::MAIN);
    pub const SEQUENCES: Extent = Extent::Sequences(StreamId::MAIN);
    pub const BOUNDARIES: Extent = Extent::Boundaries(StreamId::MAIN);

    /// The stream whose tokens or sequences the rows are counted by.
    pub fn stream(self) -> Option<StreamId> {
        match self {
            Extent::Fixed => None,
            Extent::Tokens(stream)
            | Extent::Run { stream, .. }
            | Extent::Sequences(stream)
            | Extent::Boundaries(stream) => Some(stream),
        }
    }
}

/// The kind of an activation within its layer. Recompute decides per class and layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Class(pub &'static str);

impl Class {
    pub const NONE: Class = Class("");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One immutable tensor of the graph. In-place updates make a new value that shares the old one's
/// bytes, so "who wrote this" always has one answer.
#[derive(Debug, Clone)]
pub struct Value {
    pub name: String,
    pub shape: Shape,
    pub storage: Storage,
    pub role: Role,
    pub extent: Extent,
    pub layer: Option<u32>,
    pub class: Class,
    /// Set for values that live at a fixed address across schedules (weights, gradients, state, inputs).
    pub slot: Option<crate::SlotId>,
}

impl Value {
    /// The type of its elements once read.
    pub fn dtype(&self) -> DType {
        self.storage.element
    }

    pub fn bytes(&self) -> usize {
        self.storage.bytes(&self.shape).expect("checked when the value was added")
    }

    /// That its size is one memory could have.
    pub(crate) fn check(&self) -> Result<(), GraphError> {
        self.storage.bytes(&self.shape).map(|_| ())
    }
}
