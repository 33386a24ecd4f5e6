//! What the crate promises, from files to examples.

mod fixtures;
mod lengths;
mod masks;
mod pairs;
mod reading;
mod tokenizers;
