//! What the crate promises, from files to examples.

mod arrow;
mod bad_rows;
mod caching;
mod chat_parity;
mod choosing;
mod columns;
mod contents;
mod damage;
mod fed;
mod feeding;
mod fixtures;
mod lengths;
mod masks;
mod mixing;
mod pairs;
mod reading;
mod resuming;
mod shapes;
mod sources;
mod streaming;
mod tables;
mod template_damage;
mod tokenizers;
mod turns;
mod vocabularies;
