//! A training step as data: values, operators, the backward pass as a graph transform, and what
//! each operator costs. Knows no backend and does no I/O.

mod autodiff;
mod code;
mod cost;
mod error;
mod fusion;
mod graph;
mod keep;
mod op;
pub mod ops;
mod optimizer;
mod program;
mod sink;
mod storage;
mod stream;
mod value;

pub use autodiff::{Backward, differentiate, differentiate_transient};
pub use code::{Code, E4M3_MAX};
pub use cost::{
    BackendTraits, CPU_PACKING_BYTES, CPU_PARTIAL_ROWS, Cost, GPU_PARTIAL_ROWS, GPU_PRODUCT_SCRATCH_BYTES,
    GPU_UPDATES_PER_LAUNCH, Product, Work,
};
pub use error::GraphError;
pub use fusion::{fuse_backward, fuse_forward};
pub use graph::{Graph, Node, NodeId, Phase};
pub use keep::keep_rounded;
pub use op::{Alias, Io, Op, OpRule};
pub use optimizer::{
    Matrix, OPTIMIZERS, Optimizer, OptimizerSettings, State, StateStorage, UpdateOperands, optimizer_named,
};
pub use program::{
    BatchShape, Cadence, Chunks, Program, ScheduleGraph, ScheduleId, Slot, SlotId, SlotTable, StreamShape,
};
pub use sink::sink_gradients;
pub use storage::{BlockFormat, NESTED_SCALES, Scales, Storage, TENSOR_BYTES_MAX, WEIGHT_FORMATS, WeightFormat};
pub use stream::{STREAMS_MAX, StreamId, Streams};
pub use value::{Class, DType, Extent, Role, Shape, Value, ValueId};

/// No graph has more values, and no program more slots.
pub const VALUES_MAX: usize = 1 << 20;
