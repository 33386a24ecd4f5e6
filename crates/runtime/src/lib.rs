//! The backend interface, the executor that walks a planned schedule, and weight streaming.

mod backend;
pub mod codec;
mod draw;
mod error;
mod executor;
mod numbers;
pub mod single_step;
pub mod weights;

pub use backend::{Active, ActiveStream, Backend, Counted, Fill, Used};
pub use draw::{Distribution, Draw, mix};
pub use error::RuntimeError;
pub use executor::Executor;
pub use numbers::BadNumber;
