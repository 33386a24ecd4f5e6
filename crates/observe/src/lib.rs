//! Shows where the memory goes: plans as pictures, machines as findings, runs as they are written down. It only looks on:
//! nothing here trains, and nothing here changes a run. What the dashboard's page asks for is done by whoever starts it.

pub mod dashboard;
pub mod doctor;
mod error;
pub mod machine;
pub mod picture;
pub mod runs;
pub mod tensorboard;
pub mod wandb;
pub mod watch;
mod wire;

pub use error::ObserveError;
