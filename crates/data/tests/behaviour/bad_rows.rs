//! Rows that cannot be used, and rows that are held out.

use plimsoll_data::{Amount, BadRows, Content, DataError, HoldOut, Options};

use crate::fed::{MAX_LENGTH, MODES, feed_options, make, numbered, source, take, write_files};
use crate::fixtures::Folder;

/// 300 rows of which two are bad, and the file they are in.
fn damaged(folder: &Folder) -> Vec<String> {
    let mut lines: Vec<String> = numbered(0, 300).iter().map(|row| row.to_string()).collect();
    lines[7] = "{\"prompt\": \"half".into();
    lines[200] = "{\"prompt\": 4}".into();
    vec![folder.write("rows.jsonl", lines.join("\n")).to_str().expect("UTF-8").to_owned()]
}

#[test]
fn few_bad_rows_are_left_out_counted_and_named() {
    let folder = Folder::new();
    let files = damaged(&folder);
    for mode in MODES {
        for bad_rows in [BadRows::default(), BadRows::Skip] {
            let options = Options { bad_rows, ..Options::new(Content::Answers, MAX_LENGTH) };
            let data = make(mode, vec![source(&files)], folder.path(), &options).expect("builds");
            let data = data.counted(&mut |_| {}).expect("counts");
            let summary = data.summary();
            assert_eq!((data.sequences(), summary.rows, summary.bad), (Some(298), 300, 2), "{mode:?}");
            assert!(summary.bad_first[0].contains("rows.jsonl, row 8"), "{:?}", summary.bad_first);
            assert!(summary.bad_first[1].contains("rows.jsonl, row 201"), "{:?}", summary.bad_first);
            let (seen, _) = take(&data, &feed_options(Amount::Sequences(149), 1), 1, 2);
            assert_eq!(seen.len(), 298);
        }
    }
}

#[test]
fn too_many_fail_and_leave_nothing_behind() {
    let folder = Folder::new();
    let files = damaged(&folder);
    for mode in MODES {
        let options = Options { bad_rows: BadRows::Share(0.005), ..Options::new(Content::Answers, MAX_LENGTH) };
        let result = make(mode, vec![source(&files)], &folder.path().join("cache"), &options);
        let error = result.and_then(|data| data.counted(&mut |_| {})).expect_err("too many");
        assert!(matches!(error, DataError::TooManyBadRows { bad: 2, rows: 300, .. }), "{error}");
        let failing = Options { bad_rows: BadRows::Fail, ..options.clone() };
        let result = make(mode, vec![source(&files)], &folder.path().join("cache"), &failing);
        let error = result.and_then(|data| data.counted(&mut |_| {})).expect_err("the first");
        assert!(error.to_string().contains("row 8"), "{error}");
    }
    let left = std::fs::read_dir(folder.path().join("cache")).expect("a folder").count();
    assert_eq!(left, 0);
}

#[test]
fn the_two_sides_of_a_division_are_all_rows() {
    let folder = Folder::new();
    for (rows, per_file) in [(100, 100), (100, 3), (7, 7)] {
        let files = write_files(&folder, &format!("rows{rows}-{per_file}"), &numbered(0, rows), per_file);
        for mode in MODES {
            let side = |hold_out| {
                let options = Options { hold_out, ..Options::new(Content::Answers, MAX_LENGTH) };
                let data = make(mode, vec![source(&files)], folder.path(), &options).expect("builds");
                let mut seen = data.first(usize::MAX).expect("readable");
                seen.sort_by(|a, b| a.tokens.cmp(&b.tokens));
                seen
            };
            let (held, kept) =
                (side(Some(HoldOut { every: 5, held: true })), side(Some(HoldOut { every: 5, held: false })));
            let share = held.len() as f64 / rows as f64;
            assert!((0.1..=0.3).contains(&share), "{mode:?}: {} of {rows}", held.len());
            let mut both = [held, kept].concat();
            both.sort_by(|a, b| a.tokens.cmp(&b.tokens));
            assert_eq!(both, side(None), "{mode:?}");
        }
    }
}
