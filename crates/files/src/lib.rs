//! Files and folders that appear whole or not at all, whatever happens while they are written.
//!
//! A file or folder grows under a partial name of its own, is synced, and then renamed. A partial name is locked by whoever
//! writes it, so what a killed process left behind can be told from what is being written, and is removed, never reused.
//! Every operation that changes a disk goes through [`ops`], where [`fault`] can make the n-th of them fail or kill the
//! process: what callers do about it is tested with the code that runs.

mod checksum;
mod disk;
pub mod fault;
mod folder;
mod lock;
pub mod ops;
mod partial;
mod whole;

pub use checksum::{Checksum, Summed, sum_file};
pub use disk::free_bytes;
pub use folder::{FolderFile, NewFolder, remove_folder};
pub use lock::{Lock, is_named};
pub use partial::sweep;
pub use whole::{link, publish, write};
