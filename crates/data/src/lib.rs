//! From files on disk to flat micro-batches, one folder per stage:
//!
//! | stage | from → to |
//! |---|---|
//! | `read` | files → rows |
//! | `format` | rows → samples: what the columns mean |
//! | `template` | conversations → text |
//! | `tokenize` | samples → token sequences with their losses |
//! | `store` | sequences in memory, in a cache file, or in the chunks of a stream |
//! | `order` | which group comes when: epochs, shuffling, mixtures, cursors |
//! | `batch` | groups → micro-batches |
//! | `feed` | micro-batches ahead of the consumer |
//!
//! A [`Dataset`] ties the first five together; a [`Feed`] takes groups from it in the order of training and fills
//! micro-batches ahead of the consumer. What grows is bounded in bytes and says so ([`Footprint`]). The crate
//! prints nothing and never panics on what a user wrote.

mod batch;
mod content;
mod dataset;
mod error;
mod feed;
mod format;
mod order;
pub mod quickstart;
mod read;
mod store;
mod template;
mod tokenize;
mod visible;

pub use batch::{
    Amount, Capacity, FillShape, MicroBatch, NO_LABEL, NO_MARK, PerStream, STREAMS_MAX, StreamCapacity, TokenStream,
    UpdateHead, fill_rate, pack, pack_groups,
};
pub use content::Content;
pub use dataset::{
    Choice, Dataset, Footprint, IntoSources, Limits, Options, OverLong, Progress, Sources, StorageMode, Weighted,
    choose,
};
pub use error::{DataError, Place};
pub use feed::{BatchLease, Feed, FeedOptions, SLOTS, Sequential, Waited};
pub use format::{Classes, ColumnNames, Format, Preference, RowFormat, Sample};
pub use order::{Cursor, Order, SourceCursor};
pub use read::{HoldOut, Position, ROW_BYTES_MAX, Row, RowAt, Rows, Source, decoding_untrusted};
pub use store::{ChunkStart, Example, ExampleRef, Swept, sweep_cache};
pub use template::{BUILT_IN_TEMPLATES, ChatTemplate, Rendered};
pub use tokenize::{
    BadRows, Counts, Encoded, EncodedRow, Encoder, Masked, Piece, Summary, Tokenizer, TrainedTokenizer, VocabularyKind,
    VocabularyOptions, VocabularyProgress, train_tokenizer,
};
pub use visible::visible;

/// The target of a position that bears no loss.
pub const NO_LOSS: i32 = -100;
