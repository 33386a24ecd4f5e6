//! One suite for every backend: each operator, forward and backward, against a plain f64 reference.
//! The cases stand under `tests/`, a file per family; to hold a new backend to them, add it to
//! [`backends`].

mod backends;
mod blocks;
mod check;
mod harness;
mod model_backend;
mod random;
pub mod reference;
mod rounding;
mod stand_in;
mod tensor;
mod walk;

pub use backends::{backends, card_asked_for};
pub use blocks::Blocks;
pub use check::{F32_ELEMENTWISE, F32_SUMS, Suite, compare, saved};
pub use harness::{Harness, Placement, placements};
pub use model_backend::{Fault, ModelBackend};
pub use random::Random;
pub use rounding::{Rounding, SIXTEEN, fp8_sums_of, sums_of, unit};
pub use stand_in::StandIn;
pub use tensor::{Data, Tensor};
pub use walk::walk;
