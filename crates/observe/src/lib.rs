//! Shows where the memory goes: plans as pictures, machines as findings, runs as they are written down. It only looks on:
//! nothing here trains, and nothing here writes into a run that is not its own.

pub mod picture;
