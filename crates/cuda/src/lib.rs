//! The CUDA backend: kernels compiled at run time for the card that is there, products through
//! cuBLASLt, one arena taken at the start.
//!
//! One file per operator family, named as in `graph/src/ops`, each beside `kernels/{family}.cu`.
//! `library` finds what NVIDIA provides, `compile` and `cache` turn kernels into machine code,
//! `device` holds the card with its `context`, its loaded `modules` and the `staging` memory, `usage` and `nvml` what
//! of its memory is whose, `monitor` what all cards do, `call` a step's operands, `blas` and `descriptor` the products,
//! `stored` those with weights in few bits (`decode`, `few_rows`, `fp8`), `dynamic` the tables of optimizer states in eight;
//! `grouping` says which steps of a schedule run as one, `record` keeps whole schedules to be replayed.
//!
//! Results depend on the active shape, the card and the libraries' versions, never on addresses:
//! every sum has a fixed order, and no kernel adds with atomics.

mod activation;
mod adapter;
mod adapter_low_rank;
mod attention;
mod attention_generic;
mod backend;
mod blas;
mod cache;
mod cached;
mod call;
mod compile;
mod context;
mod decode;
mod descriptor;
mod device;
mod dispatch;
mod draw;
mod dynamic;
mod elementwise;
mod embedding;
mod error;
mod few_rows;
mod fp8;
mod gated_adapters;
mod grouping;
mod kept;
mod launch;
mod layer_norm;
mod library;
mod linear;
mod loss;
mod low_rank;
mod mask;
mod modules;
mod monitor;
mod norm;
mod nvml;
mod optimizer;
mod position_bias;
mod preference;
mod profile;
mod ranking;
mod record;
mod rope;
mod rows;
mod score;
mod staging;
mod stored;
mod timer;
mod usage;

pub use backend::CudaBackend;
pub use compile::{Compiled, architecture, compile_all};
pub use device::MemoryInfo;
pub use error::{CudaError, Missing, describe_holders};
pub use monitor::{CardInventory, CardReading, Monitor, Slowed, missing_libraries};
pub use nvml::Holder;
pub use profile::Profile;
