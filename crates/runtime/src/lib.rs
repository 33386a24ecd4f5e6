//! The backend interface, the arena and the executor that walks a planned schedule.

mod backend;
mod error;

pub use backend::{Active, Backend};
pub use error::RuntimeError;
