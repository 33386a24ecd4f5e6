//! Training on the CPU, end to end: what Hugging Face computes, whatever the plan.

mod coded_base;
mod generation;
mod guard;
mod kept;
mod loss_scale;
mod memory;
mod merge;
mod optimizers;
mod parity;
mod resume;
mod resumed_inputs;
mod reward;
mod run;
mod same_bits;
mod sourced;
mod support;
mod tasks;
mod update_in_backward;
