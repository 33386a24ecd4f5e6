//! Tokenised once, kept in a file: records, then an index of fixed-size entries, read by position.
//!
//! Nothing is mapped: mapped pages would count as the process's memory, and a file that shrinks would kill it. What is
//! resident is one record and a few pages of the index, whatever the size of the dataset.
//!
//! ```text
//! header (4 KiB) · records · index: pages of 128 entries, each with its checksum
//! ```
//!
//! The header, the length of the file and the whole index are checked when the file is opened (24 bytes per sequence; a
//! second for 100 million). A record is checked each time it is read, against the checksum in its entry.

mod build;
mod key;
mod layout;
mod reader;
mod sweep;

pub(crate) use build::build_or_open;
pub(crate) use key::{file_name, key};
pub(crate) use reader::{CacheFile, CacheReader, reader_bytes};
pub use sweep::{Swept, sweep_cache};
