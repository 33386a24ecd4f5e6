//! The backend interface, the executor that walks a planned schedule, and weight streaming.

mod backend;
mod error;
mod executor;
pub mod weights;

pub use backend::{Active, Backend, Run};
pub use error::RuntimeError;
pub use executor::Executor;
