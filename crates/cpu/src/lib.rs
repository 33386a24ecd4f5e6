//! The CPU backend: float32 kernels that use SIMD and threads, over one arena taken at the start.
//!
//! One file per operator family, named as in `graph/src/ops`. `args` turns a step's regions into
//! typed memory, `workers` divides work among threads, `vector` and `math` hold what the kernels'
//! inner loops are made of, `product` and `tile` the large and the small matrix products.
//!
//! Results depend on the active shape and on the number of threads, never on addresses: every
//! division of work follows from the shape, and every sum has a fixed order.

mod activation;
mod adapter;
mod arena;
mod args;
mod attention;
mod backend;
mod cached;
mod coded;
mod dispatch;
mod elementwise;
mod embedding;
mod gated_adapters;
mod kept;
mod layer_norm;
mod linear;
mod loss;
pub mod mask;
mod math;
mod norm;
mod optimizer;
mod position_bias;
mod preference;
mod product;
mod profile;
mod ranking;
mod rope;
mod rows;
mod score;
mod tile;
mod vector;
mod workers;

pub use backend::CpuBackend;
pub use plimsoll_runtime::single_step;
pub use profile::{Rates, measure};
