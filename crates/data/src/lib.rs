//! From files on disk to flat micro-batches: read → shape → template → tokenise → store → order → pack.
//!
//! Each step is a module of its own and hands plain values to the next. A [`Dataset`] is one type over three ways of
//! keeping tokenised groups: in memory, in a cache file, or nowhere (streamed). A [`Feed`] takes groups from it in the order
//! of training and fills micro-batches ahead of the consumer. What grows is bounded in bytes and says so
//! ([`Dataset::feed_bytes`]). The crate prints nothing and never panics on what a user wrote.

mod bins;
mod cache;
mod chat;
mod choose;
mod cut;
mod dataset;
mod disk;
mod encode;
mod error;
mod feed;
mod mask;
mod mixture;
mod order;
mod pack;
mod pairs;
mod permutation;
mod pump;
pub mod quickstart;
mod read;
mod record;
mod sequential;
mod shape;
mod store;
mod stream;
mod supply;
mod tally;
mod tokenizer;
mod update;
mod vocabulary;
mod walk;

pub use cache::{Swept, sweep_cache};
pub use chat::{BUILT_IN_TEMPLATES, ChatTemplate, Rendered};
pub use choose::{Choice, Limits, Mode, choose};
pub use dataset::{Dataset, HoldOut, Options, OverLong, Progress, Task, Weighted, shape_of};
pub use disk::free_bytes;
pub use encode::{EncodedRow, Encoder, Piece};
pub use error::{DataError, Place};
pub use feed::{Feed, FeedOptions, Loan, SLOTS, Waited};
pub use mask::Masked;
pub use order::Order;
pub use pack::{Capacity, MicroBatch, fill_rate, pack, pack_groups};
pub use pairs::Preference;
pub use read::{Position, ROW_BYTES_MAX, Row, Rows, Source, decoding_untrusted};
pub use sequential::Sequential;
pub use shape::{Format, Sample, Shape};
pub use store::{Example, ExampleRef};
pub use stream::BlockStart;
pub use supply::RowAt;
pub use tally::{BadRows, Counts, Summary};
pub use tokenizer::{Encoded, Tokenizer};
pub use update::{Amount, UpdateHead};
pub use vocabulary::{TrainedTokenizer, VocabularyKind, VocabularyOptions, VocabularyProgress, train_tokenizer};
pub use walk::{Cursor, LaneCursor};

/// The target of a position that bears no loss.
pub const NO_LOSS: i32 = -100;
