//! Text: which token comes next, and sequences that grow side by side in a planned cache.

mod sampling;
mod sequences;

pub use sampling::Sampling;
pub use sequences::{Ending, Generated};
