//! Training on the CPU, end to end: what Hugging Face computes, whatever the plan.

mod generation;
mod guard;
mod parity;
mod reward;
mod same_bits;
mod support;
