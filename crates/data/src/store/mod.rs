//! Tokenised sequences, wherever they are stored: in memory, in a cache file, or in the chunks of a stream.

mod cache;
mod chunks;
mod example;
mod record;
mod stored;

pub use cache::{Swept, sweep_cache};
pub(crate) use cache::{build_or_open, file_name, key, reader_bytes as cache_reader_bytes};
pub use chunks::ChunkStart;
pub(crate) use chunks::{Chunk, Filler, StreamOrder, StreamSource, chunk_bytes, first_chunk};
pub(crate) use example::count_loss;
pub use example::{Example, ExampleRef};
pub(crate) use record::{Entry, Group, Layout, PerToken, RecordFormat, Records, Sequence};
pub(crate) use stored::{Store, StoreReader, Totals};
