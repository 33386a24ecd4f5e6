//! What the crate promises, from files to examples.

mod chat_parity;
mod damage;
mod fixtures;
mod lengths;
mod masks;
mod pairs;
mod reading;
mod shapes;
mod sources;
mod template_damage;
mod tokenizers;
mod vocabularies;
