//! English and Chinese: whether both say all there is to say, and how it looks.

mod catalogue;
mod outputs;
mod readmes;
mod sources;
