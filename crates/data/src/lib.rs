//! From files on disk to flat micro-batches: read → shape → template → tokenise → store → order → pack.
//!
//! Each step is a module of its own and hands plain values to the next. `store` is the only one that decides where
//! tokenised examples live (today: in memory); `order` and `pack` see indices and borrowed examples, so another store
//! can take its place without touching them. The crate prints nothing and never panics on what a user wrote.

mod chat;
mod dataset;
mod encode;
mod error;
mod mask;
mod order;
mod pack;
mod pairs;
pub mod quickstart;
mod read;
mod shape;
mod store;
mod tokenizer;
mod vocabulary;

pub use chat::{BUILT_IN_TEMPLATES, ChatTemplate, Rendered};
pub use dataset::{Dataset, Options, OverLong, Summary, Task};
pub use encode::{EncodedRow, Encoder, Piece};
pub use error::{DataError, Place};
pub use mask::Masked;
pub use order::{Order, Updates};
pub use pack::{Capacity, MicroBatch, fill_rate, pack, pack_groups};
pub use pairs::Preference;
pub use read::{Position, ROW_BYTES_MAX, Row, Rows, Source, decoding_untrusted};
pub use shape::{Format, Sample, Shape};
pub use store::{Example, ExampleRef};
pub use tokenizer::{Encoded, Tokenizer};
pub use vocabulary::{TrainedTokenizer, VocabularyKind, VocabularyOptions, VocabularyProgress, train_tokenizer};

/// The target of a position that bears no loss.
pub const NO_LOSS: i32 = -100;
