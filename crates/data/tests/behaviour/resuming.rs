//! Stop anywhere, go on from the cursor: the rest of the stream is what it would have been.

use plimsoll_data::{Amount, Content, Cursor, DataError, Feed, FeedOptions, Options, Source, Weighted};
use proptest::prelude::*;

use crate::fed::{
    CONTENTS, MAX_LENGTH, MODES, Mode, feed_options, feed_options_for, make, numbered, options_for, rows_of, source,
    take, write_files,
};
use crate::fixtures::Folder;

/// Through text, as a checkpoint keeps it.
fn stored(cursor: &Cursor) -> Cursor {
    serde_json::from_str(&serde_json::to_string(cursor).expect("writes")).expect("reads")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn the_rest_is_the_same_also_under_another_batch_and_other_ranks(
        rows in 8usize..150, per_file in 3usize..80, content in 0usize..5, mode in 0usize..3, weighted: bool, shuffle: bool,
        seed: u64, stop in 0usize..12, before in 1u64..12, after in 1u64..30, ranks in 1usize..4,
    ) {
        let content = CONTENTS[content];
        // Two streams need twice the buffer.
        let mode = match MODES[mode] {
            Mode::Streamed(buffer) => Mode::Streamed(buffer * content.streams() as u64),
            mode => mode,
        };
        let folder = Folder::new();
        let files = write_files(&folder, "rows", &rows_of(content, rows), per_file);
        let open = || {
            let sources = if weighted && files.len() > 1 {
                let (first, rest) = files.split_at(1);
                let weighted = |files: &[String], weight| Weighted { source: Source::open(files).expect("opens"), weight: Some(weight) };
                vec![weighted(first, 2.0), weighted(rest, 1.0)]
            } else {
                vec![source(&files)]
            };
            make(mode, sources, folder.path(), &options_for(content)).expect("builds")
        };
        let group = content.group() as u64;
        let options = |sequences: u64| FeedOptions { shuffle, ..feed_options_for(content, Amount::Sequences(group * sequences), seed) };
        let (whole, _) = take(&open(), &options(1), 1, 250);
        let (first, cursor) = take(&open(), &options(before), 1, stop);
        let again = FeedOptions { cursor: cursor.as_ref().map(stored), ..options(after) };
        let (rest, _) = take(&open(), &again, ranks, 3);
        let resumed: Vec<Vec<i32>> = first.into_iter().chain(rest).collect();
        prop_assert!(resumed.len() <= whole.len());
        prop_assert_eq!(&resumed[..], &whole[..resumed.len()]);
    }
}

#[test]
fn a_cursor_of_something_else_is_refused() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &numbered(0, 60), 60);
    let options = Options::new(Content::Answers, MAX_LENGTH);
    for mode in MODES {
        let data = make(mode, vec![source(&files)], folder.path(), &options).expect("builds");
        let base = feed_options(Amount::Sequences(4), 3);
        let (_, cursor) = take(&data, &base, 1, 3);
        let other = FeedOptions { seed: 4, cursor: cursor.clone(), ..base.clone() };
        assert!(matches!(Feed::start(&data, &other), Err(DataError::OtherCursor)), "{mode:?}");
        for other in MODES.into_iter().filter(|other| !crate::resuming::alike(mode, *other)) {
            let data = make(other, vec![source(&files)], folder.path(), &options).expect("builds");
            let result = Feed::start(&data, &FeedOptions { cursor: cursor.clone(), ..base.clone() });
            assert!(matches!(result, Err(DataError::OtherCursor)), "{mode:?} {other:?}");
        }
    }
}

/// Memory and cache have the same order, so a run may go on from one with the other.
pub fn alike(a: crate::fed::Mode, b: crate::fed::Mode) -> bool {
    use crate::fed::Mode::Streamed;
    matches!(a, Streamed(_)) == matches!(b, Streamed(_))
}
