//! How big the data will be, and how it is best kept.

use std::sync::Arc;

use plimsoll_data::{
    Amount, Content, FeedOptions, Footprint, Limits, Options, PerStream, StorageMode, StreamCapacity, Weighted, choose,
};

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
    let held = make(fed::Mode::Memory, sources, folder.path(), &options).expect("builds");
    let held = held.footprint().resident_bytes;
    let ratio = choice.estimate_bytes as f64 / held as f64;
    assert!((0.7..1.3).contains(&ratio), "{} for {held}", choice.estimate_bytes);
    // A budget that is small itself has no room for it.
    let (_, choice) = choose(vec![source(&files)], &plain_tokenizer(), &options, &limits(1 << 20)).expect("chooses");
    assert_ne!(choice.mode, StorageMode::Memory, "{choice:?}");
}

/// What is told before anything is tokenised but a sample is what the dataset then takes.
#[test]
fn what_a_dataset_will_take_is_known_before_it_is_made() {
    const BUFFER_BYTES: u64 = 20_000;
    let folder = Folder::new();
    let tokenizer = Arc::new(plain_tokenizer());
    let options = Options::new(Content::Answers, MAX_LENGTH);
    let files = [("a", 0), ("b", 700)].map(|(name, from)| write_files(&folder, name, &numbered(from, 700), 350));
    let alone = || vec![source(&files[0])];
    let mixture = || files.iter().map(|files| Weighted { weight: Some(1.0), ..source(files) }).collect::<Vec<_>>();
    let capacity = PerStream::single(StreamCapacity { tokens: 64, sequences: 8 });
    let feed = FeedOptions::new(capacity, PerStream::single(MAX_LENGTH), Amount::Sequences(8), 0);
    let modes = [
        (StorageMode::Memory, fed::Mode::Memory),
        (StorageMode::Cached, fed::Mode::Cached),
        (StorageMode::Streamed, fed::Mode::Streamed(BUFFER_BYTES)),
    ];
    for (mode, made_as) in modes {
        for sources in [&alone as &dyn Fn() -> Vec<Weighted>, &mixture] {
            let told = Footprint::forecast(sources(), &tokenizer, &options, mode, BUFFER_BYTES).expect("reads");
            let made = make(made_as, sources(), folder.path(), &options).expect("builds").footprint();
            assert_eq!(told, made, "{mode}");
            assert_eq!(told.feed_bytes(&feed), made.feed_bytes(&feed));
            assert_eq!(told.sequential_bytes(capacity), made.sequential_bytes(capacity));
        }
    }
}
