//! Updates out of a feed: every row once per epoch, whole groups, heads that keep their word.

use plimsoll_data::{Amount, Capacity, Content, DataError, Dataset, Feed, FeedOptions, Options};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fed::{
    CONTENTS, MAX_LENGTH, MODES, Mode, feed_options, feed_options_for, flat, make, next_update, numbered, options_for,
    rows_of, source, take, write_files,
};
use crate::fixtures::Folder;

fn sorted(mut sequences: Vec<Vec<i32>>) -> Vec<Vec<i32>> {
    sequences.sort();
    sequences
}

/// All sequences in the order of the files.
fn in_order(data: &Dataset) -> Vec<Vec<i32>> {
    let examples = data.first(usize::MAX).expect("readable");
    examples.iter().map(flat).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_row_comes_once_per_epoch(
        rows in 1usize..120, per_file in 1usize..60, batch in 1u64..20, ranks in 1usize..4, workers in 1usize..4,
        seed: u64, shuffle: bool, mode in 0usize..3, content in 0usize..3,
    ) {
        // One sequence per row.
        let content = [Content::Answers, CONTENTS[3], CONTENTS[4]][content];
        let folder = Folder::new();
        let files = write_files(&folder, "rows", &rows_of(content, rows), per_file);
        let options = Options { workers, ..options_for(content) };
        let data = make(MODES[mode], vec![source(&files)], folder.path(), &options).expect("builds");
        let all = in_order(&data);
        prop_assert_eq!(all.len(), rows);
        let feed = FeedOptions { shuffle, ..feed_options_for(content, Amount::Sequences(batch), seed) };
        let (seen, _) = take(&data, &feed, ranks, (2 * rows).div_ceil(batch as usize));
        for epoch in 0..2 {
            let epoch = seen[epoch * rows..(epoch + 1) * rows].to_vec();
            if !shuffle {
                prop_assert_eq!(&epoch, &all);
            }
            prop_assert_eq!(sorted(epoch), sorted(all.clone()));
        }
    }

    #[test]
    fn updates_of_tokens_are_as_full_as_the_order_allows(rows in 1usize..80, limit in 1u64..60, ranks in 1usize..3, mode in 0usize..3) {
        let folder = Folder::new();
        let files = write_files(&folder, "rows", &numbered(0, rows), 30);
        let data = make(MODES[mode], vec![source(&files)], folder.path(), &Options::new(Content::Answers, MAX_LENGTH)).expect("builds");
        let options = feed_options(Amount::Tokens(limit), 5);
        let whole: Vec<Vec<i32>> = take(&data, &feed_options(Amount::Sequences(1), 5), 1, 3 * rows + 60).0;
        let mut feeds: Vec<Feed> = (0..ranks)
            .map(|rank| Feed::start(&data, &FeedOptions { rank, ranks, ..options.clone() }).expect("starts"))
            .collect();
        let mut position = 0;
        // A sequence has more than one token, so 60 are more than any update has.
        while position + 60 < whole.len() {
            let mut expected = 1;
            let length = |count: usize| whole[position..position + count].iter().map(Vec::len).sum::<usize>() as u64;
            while length(expected + 1) <= limit {
                expected += 1;
            }
            for feed in &mut feeds {
                let (head, _) = next_update(feed, options.capacity).expect("feeds");
                prop_assert_eq!((head.sequences, head.tokens), (expected as u64, length(expected)));
            }
            position += expected;
        }
    }
}

#[test]
fn all_modes_hold_the_same_and_any_number_of_workers_makes_it() {
    let texts: Vec<Value> = (0..60).map(|i| json!({"text": format!("{i} ").repeat(1 + i % 9)})).collect();
    let pairs: Vec<Value> = (0..60)
        .map(|i| json!({"prompt": format!("{i}"), "chosen": "yes", "rejected": "n".repeat(1 + i % 5)}))
        .collect();
    let [.., labelled, source_target] = CONTENTS;
    for (content, rows) in [
        (Content::Text, texts),
        (Content::Answers, numbered(0, 60)),
        (Content::Pairs, pairs),
        (labelled, rows_of(labelled, 60)),
        (source_target, rows_of(source_target, 60)),
    ] {
        let folder = Folder::new();
        let files = write_files(&folder, "rows", &rows, 13);
        let of = |mode, workers| {
            let options = Options { workers, ..options_for(content) };
            make(mode, vec![source(&files)], folder.path(), &options).expect("builds")
        };
        let expected = of(Mode::Memory, 1).first(usize::MAX).expect("readable");
        let batch = |data: &Dataset, seed| {
            let options = FeedOptions { shuffle: seed > 0, ..feed_options_for(content, Amount::Sequences(4), seed) };
            take(data, &options, 1, 40).0
        };
        let plain = batch(&of(Mode::Memory, 1), 0);
        for mode in MODES {
            let data = of(mode, 3);
            assert_eq!(data.first(usize::MAX).expect("readable"), expected, "{content:?} {mode:?}");
            assert_eq!(batch(&data, 0), plain, "{content:?} {mode:?}");
            assert_eq!(batch(&data, 7), batch(&of(mode, 1), 7), "{content:?} {mode:?}");
            assert_ne!(batch(&data, 7), batch(&data, 8), "{content:?} {mode:?}");
        }
        // Stores share one order; a stream shuffles within blocks.
        assert_eq!(batch(&of(Mode::Memory, 2), 7), batch(&of(Mode::Cached, 2), 7));
        let counted = of(MODES[2], 2).counted(&mut |_| {}).expect("counts");
        let memory = of(Mode::Memory, 1);
        assert_eq!((counted.sequences(), counted.total_tokens()), (memory.sequences(), memory.total_tokens()));
        assert_eq!((counted.loss_tokens(), counted.summary()), (memory.loss_tokens(), memory.summary()));
    }
}

#[test]
fn pairs_stay_beside_each_other_on_one_rank() {
    let rows: Vec<Value> = (0..50)
        .map(|i| json!({"prompt": format!("{i}"), "chosen": "yes", "rejected": "no".repeat(1 + i % 3)}))
        .collect();
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &rows, 50);
    for mode in MODES {
        let data =
            make(mode, vec![source(&files)], folder.path(), &Options::new(Content::Pairs, MAX_LENGTH)).expect("builds");
        let options = feed_options(Amount::Sequences(12), 1);
        for rank in 0..2 {
            let mut feed = Feed::start(&data, &FeedOptions { rank, ranks: 2, ..options.clone() }).expect("starts");
            for _ in 0..8 {
                feed.next_update().expect("feeds");
                while let Some(batch) = feed.next_batch().expect("feeds") {
                    let numbers: Vec<usize> =
                        crate::fed::unpacked(&batch, MAX_LENGTH).into_iter().map(|(number, _)| number).collect();
                    for pair in numbers.chunks(2) {
                        assert_eq!((pair[0] % 2, pair[0] + 1), (0, pair[1]), "{mode:?}");
                        assert_eq!(pair[0] / 2 % 2, rank);
                    }
                }
            }
        }
    }
}

/// More groups than a window, and more bytes than a stream's blocks: planned twice, whole nevertheless.
#[test]
fn an_update_may_be_larger_than_anything_that_is_held() {
    let folder = Folder::new();
    let rows = 40_000;
    let files = write_files(&folder, "rows", &numbered(0, rows), 9000);
    for mode in [Mode::Memory, Mode::Cached, Mode::Streamed(200_000)] {
        let data = make(
            mode,
            vec![source(&files)],
            folder.path(),
            &Options { workers: 2, ..Options::new(Content::Answers, MAX_LENGTH) },
        )
        .expect("builds");
        let capacity = Capacity::one(512, 64);
        let options = FeedOptions { capacity, ..feed_options(Amount::Sequences(60_000), 3) };
        let (seen, _) = take(&data, &options, 1, 2);
        // Other ranks see the same, also where some windows have nothing for them.
        let (ranked, _) = take(&data, &options, 2, 2);
        assert!(ranked == seen, "{mode:?}");
        assert_eq!(seen.len(), 120_000);
        let epoch = sorted(seen[..rows].to_vec());
        assert!(epoch.windows(2).all(|pair| pair[0] != pair[1]), "{mode:?}: a row came twice");
        let feed = Feed::start(&data, &options).expect("starts");
        assert!(feed.planned_bytes() < 24 << 20, "{mode:?}: {}", feed.planned_bytes());
    }
}

/// Blocks of one group, so that every update goes over many windows and most have nothing for a given rank.
#[test]
fn ranks_without_a_share_of_a_window_keep_their_place() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &numbered(0, 50), 50);
    let options = Options::new(Content::Answers, MAX_LENGTH);
    let data = make(Mode::Streamed(2500), vec![source(&files)], folder.path(), &options).expect("builds");
    let feed = feed_options(Amount::Sequences(30), 3);
    let (expected, _) = take(&data, &feed, 1, 12);
    for ranks in [2, 7, 29] {
        assert_eq!(take(&data, &feed, ranks, 12).0, expected, "{ranks} ranks");
    }
}

#[test]
fn a_feed_that_is_dropped_ends_and_loans_outlive_it() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &numbered(0, 500), 100);
    for mode in MODES {
        let data = make(mode, vec![source(&files)], folder.path(), &Options::new(Content::Answers, MAX_LENGTH))
            .expect("builds");
        let mut feed = Feed::start(&data, &feed_options(Amount::Sequences(50), 3)).expect("starts");
        feed.next_update().expect("feeds");
        let loan = feed.next_batch().expect("feeds").expect("one at least");
        let second = feed.next_batch().expect("feeds").expect("two at least");
        // What is not taken of an update is passed over.
        let (head, sequences) = next_update(&mut feed, Capacity::one(48, 6)).expect("feeds");
        assert_eq!((head.sequences, sequences.len()), (50, 50));
        assert!(feed.waited().asked >= feed.waited().empty);
        drop(feed);
        assert!(!loan.is_empty() && !second.is_empty());
    }
}

#[test]
fn micro_batches_are_used_again() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &numbered(0, 300), 100);
    let data = make(Mode::Cached, vec![source(&files)], folder.path(), &Options::new(Content::Answers, MAX_LENGTH))
        .expect("builds");
    let options = FeedOptions { slots: 2, ..feed_options(Amount::Sequences(100), 3) };
    let mut feed = Feed::start(&data, &options).expect("starts");
    let mut places = std::collections::HashSet::new();
    for _ in 0..10 {
        feed.next_update().expect("feeds");
        while let Some(batch) = feed.next_batch().expect("feeds") {
            places.insert((batch.main().tokens.as_ptr(), batch.targets.as_ptr(), batch.main().cu_seqlens.as_ptr()));
        }
    }
    assert_eq!(places.len(), 2);
}

#[test]
fn what_cannot_be_fed_is_refused() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &numbered(0, 30), 30);
    let data = make(Mode::Memory, vec![source(&files)], folder.path(), &Options::new(Content::Answers, MAX_LENGTH))
        .expect("builds");
    let base = feed_options(Amount::Sequences(4), 3);
    for wrong in [
        FeedOptions { rank: 2, ranks: 2, ..base.clone() },
        FeedOptions { slots: 0, ..base.clone() },
        FeedOptions { amount: Amount::Sequences(0), ..base.clone() },
        FeedOptions { amount: Amount::Tokens(0), ..base.clone() },
    ] {
        assert!(matches!(Feed::start(&data, &wrong), Err(DataError::Feed { .. })), "{wrong:?}");
    }
    // An error on the way reaches whoever waits.
    let narrow = FeedOptions { capacity: Capacity::one(5, 6), ..base };
    let mut feed = Feed::start(&data, &narrow).expect("starts");
    assert!(matches!(feed.next_update(), Err(DataError::DoesNotFit { .. })));
    assert!(matches!(feed.next_update(), Err(DataError::Stopped)));
}

#[test]
fn evaluation_sees_each_sequence_once_and_in_order() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &numbered(0, 200), 70);
    for mode in MODES {
        let data = make(mode, vec![source(&files)], folder.path(), &Options::new(Content::Answers, MAX_LENGTH))
            .expect("builds");
        let capacity = Capacity::one(40, 5);
        let mut batches = data.sequential(capacity).expect("starts");
        let mut seen = Vec::new();
        while let Some(batch) = batches.next_batch().expect("reads") {
            assert!(batch.len() <= 40 && batch.sequences() <= 5 && !batch.is_empty());
            seen.extend(crate::fed::unpacked(batch, MAX_LENGTH).into_iter().map(|(_, tokens)| tokens));
        }
        assert_eq!(seen, in_order(&data), "{mode:?}");
        let mut narrow = data.sequential(Capacity::one(3, 5)).expect("starts");
        assert!(matches!(narrow.next_batch(), Err(DataError::DoesNotFit { .. })));
    }
}
