//! What the crate promises, from files to examples.

mod fixtures;
mod lengths;
mod masks;
mod reading;
mod tokenizers;
