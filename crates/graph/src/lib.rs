//! A training step as data: values, operators, the backward pass as a graph transform, and what
//! each operator costs. Knows no backend and does no I/O.

mod autodiff;
mod cost;
mod error;
mod graph;
mod op;
pub mod ops;
mod program;
mod value;

pub use autodiff::{Backward, differentiate};
pub use cost::{CPU_PACKING_BYTES, Cost, Target, Unit};
pub use error::GraphError;
pub use graph::{Graph, Node, NodeId, Phase};
pub use op::{Alias, Io, Op, OpRule};
pub use program::{BatchShape, Program, Slot, SlotId, SlotTable};
pub use value::{Class, DType, Extent, Role, Shape, Value, ValueId};
