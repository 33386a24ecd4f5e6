//! Text: which token comes next, and sequences that grow side by side in a planned cache.

mod compare;
mod rows;
mod sampling;
mod sequences;

pub use compare::TextComparison;
pub use sampling::Sampling;
pub use sequences::{Ending, Generated};
