//! Sources with weights.

use plimsoll_data::{Amount, Content, DataError, Options, Source, Weighted};

use crate::fed::{MAX_LENGTH, MODES, feed_options, make, numbered, take, write_files};
use crate::fixtures::Folder;

/// Rows 0 to 30 and rows 1000 to 1200; the first token tells which (`1000?` begins with a one, and no other has five).
fn sources(folder: &Folder, weights: [Option<f64>; 2]) -> Vec<Weighted> {
    let small = write_files(folder, "small", &numbered(0, 30), 30);
    let large = write_files(folder, "large", &numbered(1000, 200), 40);
    let open = |files: &[String], weight| Weighted { source: Source::open(files).expect("opens"), weight };
    vec![open(&small, weights[0]), open(&large, weights[1])]
}

fn is_large(sequence: &[i32], question_mark: i32) -> bool {
    sequence.iter().position(|&token| token == question_mark) == Some(4)
}

#[test]
fn shares_hold_and_each_source_has_its_own_epochs() {
    let folder = Folder::new();
    let question_mark = crate::fixtures::plain_tokenizer().encode("?", false).expect("encodes")[0] as i32;
    for mode in MODES {
        let options = Options::new(Content::Answers, MAX_LENGTH);
        let data = make(mode, sources(&folder, [Some(3.0), Some(1.0)]), folder.path(), &options).expect("builds");
        let (seen, _) = take(&data, &feed_options(Amount::Sequences(64), 9), 1, 32);
        let (large, small): (Vec<_>, Vec<_>) = seen.into_iter().partition(|s| is_large(s, question_mark));
        // Two blocks of 1024 positions each.
        assert_eq!((small.len(), large.len()), (1536, 512), "{mode:?}");
        for (sequences, rows) in [(small, 30), (large, 200)] {
            for epoch in sequences.chunks_exact(rows) {
                let mut epoch = epoch.to_vec();
                epoch.sort();
                epoch.dedup();
                assert_eq!(epoch.len(), rows, "{mode:?}: each row once per epoch of its source");
            }
        }
    }
}

#[test]
fn without_weights_sources_are_one() {
    let folder = Folder::new();
    for mode in MODES {
        let options = Options::new(Content::Answers, MAX_LENGTH);
        let data = make(mode, sources(&folder, [None, None]), folder.path(), &options).expect("builds");
        let (mut seen, _) = take(&data, &feed_options(Amount::Sequences(23), 9), 1, 10);
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 230, "{mode:?}");
    }
}

#[test]
fn weights_are_for_all_or_for_none() {
    let folder = Folder::new();
    for mode in MODES {
        let options = Options::new(Content::Answers, MAX_LENGTH);
        let error = make(mode, sources(&folder, [Some(1.0), None]), folder.path(), &options).expect_err("half");
        assert!(matches!(error, DataError::SomeWeights { sources: 2, weighted: 1 }), "{error}");
        let made = make(mode, sources(&folder, [Some(1.0), Some(0.0)]), folder.path(), &options).expect("builds");
        let result = plimsoll_data::Feed::start(&made, &feed_options(Amount::Sequences(2), 1));
        assert!(matches!(result, Err(DataError::Weight { .. })));
    }
}
