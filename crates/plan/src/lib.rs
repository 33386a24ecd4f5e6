//! Chooses, lays out and verifies the memory plan of a training step. Pure functions: no I/O, no device.

mod schedule;

pub use schedule::{Buffer, Lane, Place, Region, Schedule, Step};
