//! From rows to groups of token sequences.

mod cut;
mod encode;
mod mask;
mod pairs;
mod producer;
mod tally;
mod tokenizer;
mod vocabulary;

pub use encode::{EncodedRow, Encoder, Piece};
pub use mask::Masked;
pub(crate) use producer::{Origin, Producer, RawRow, Sampled, producer_bytes};
pub(crate) use tally::Tally;
pub use tally::{BadRows, Counts, Summary};
pub(crate) use tokenizer::fingerprint;
pub use tokenizer::{Encoded, Tokenizer};
pub use vocabulary::{TrainedTokenizer, VocabularyKind, VocabularyOptions, VocabularyProgress, train_tokenizer};
