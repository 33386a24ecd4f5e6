//! How big the data will be, and how it is best kept.

use plimsoll_data::{Content, Limits, Options, StorageMode, choose};

use crate::fed::{self, MAX_LENGTH, make, numbered, source, write_files};
use crate::fixtures::{Folder, plain_tokenizer};

#[test]
fn the_estimate_is_close_and_small_data_stays_in_memory() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &numbered(0, 20_000), 20_000);
    let options = Options::new(Content::Answers, MAX_LENGTH);
    let limits = |host_bytes| Limits { host_bytes, folder: folder.path() };
    let (sources, choice) =
        choose(vec![source(&files)], &plain_tokenizer(), &options, &limits(1 << 30)).expect("chooses");
    assert_eq!(choice.mode, StorageMode::Memory, "{choice:?}");
    let held = make(fed::Mode::Memory, sources, folder.path(), &options).expect("builds").resident_bytes();
    let ratio = choice.estimate_bytes as f64 / held as f64;
    assert!((0.7..1.3).contains(&ratio), "{} for {held}", choice.estimate_bytes);
    // A budget that is small itself has no room for it.
    let (_, choice) = choose(vec![source(&files)], &plain_tokenizer(), &options, &limits(1 << 20)).expect("chooses");
    assert_ne!(choice.mode, StorageMode::Memory, "{choice:?}");
}
