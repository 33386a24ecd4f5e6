//! What the crate promises, from files to examples.

mod damage;
mod fixtures;
mod lengths;
mod masks;
mod pairs;
mod reading;
mod sources;
mod tokenizers;
