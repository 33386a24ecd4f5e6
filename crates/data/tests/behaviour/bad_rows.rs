//! Rows that cannot be used, and rows that are held out.

use plimsoll_data::{Amount, BadRows, Content, DataError, HoldOut, Options};

use crate::fed::{MAX_LENGTH, MODES, feed_options, make, numbered, source, take, write_files};
use crate::fixtures::{Folder, with_hint};

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

/// Blank lines, bad rows and short files between the rows change nothing: each side has its share of the readable rows,
/// exact to one, in every storage mode the same ones, and together they are all.
#[test]
fn the_two_sides_of_a_division_are_all_rows() {
    let folder = Folder::new();
    for (rows, per_file, share) in [(600, 600, 0.5), (600, 7, 0.3), (100, 3, 0.7), (7, 7, 0.1), (10, 1, 0.4)] {
        let mut lines: Vec<String> = numbered(0, rows).iter().map(serde_json::Value::to_string).collect();
        lines.insert(lines.len() / 2, "no row".to_owned());
        let files: Vec<_> = lines
            .chunks(per_file)
            .enumerate()
            .map(|(i, lines)| folder.write(&format!("{rows}-{per_file}-{i}.jsonl"), lines.join("\n\n\n")))
            .collect();
        let mut first: Option<Vec<_>> = None;
        for (mode, workers) in [(MODES[0], 1), (MODES[0], 3), (MODES[1], 2), (MODES[2], 2)] {
            let side = |hold_out| {
                let mut options = Options { hold_out, workers, ..Options::new(Content::Answers, MAX_LENGTH) };
                options.bad_rows = BadRows::Skip;
                let data = make(mode, vec![source(&files)], folder.path(), &options).expect("opens");
                let data = data.counted(&mut |_| {}).expect("counts");
                let mut seen = data.first(usize::MAX).expect("readable");
                seen.sort_by(|a, b| a.tokens.cmp(&b.tokens));
                (seen, data.summary().counts.clone())
            };
            let hold = |held| Some(HoldOut { share, seed: 11, held });
            let ((kept, of_kept), (all, _)) = (side(hold(false)), side(None));
            assert!(
                (kept.len() as f64 - (1.0 - share) * rows as f64).abs() <= 1.0,
                "{mode:?}: {} of {rows}",
                kept.len()
            );
            assert_eq!((of_kept.rows, of_kept.bad), (kept.len() as u64 + 1, 1));
            if of_kept.other_side == 0 {
                continue;
            }
            let (held, of_held) = side(hold(true));
            assert_eq!((of_kept.other_side, of_held.other_side), (held.len() as u64, kept.len() as u64));
            assert_eq!((of_held.rows, of_held.bad), (held.len() as u64, 0));
            assert_eq!(first.get_or_insert_with(|| held.clone()), &held, "{mode:?}");
            let mut both = [held, kept].concat();
            both.sort_by(|a, b| a.tokens.cmp(&b.tokens));
            assert_eq!(both, all, "{mode:?}");
        }
    }
}

/// A paragraph of a text is a row, and so is each row of a Parquet file with many groups.
#[test]
fn texts_and_tables_are_divided_by_rows() {
    let folder = Folder::new();
    let text: String = (0..400).map(|i| format!("paragraph {i}\n{}", "\n".repeat(1 + i % 3))).collect();
    let files = [folder.write("rows.txt", text)];
    for mode in MODES {
        let counts = |held| {
            let hold_out = Some(HoldOut { share: 0.25, seed: 3, held });
            let options = Options { hold_out, ..Options::new(Content::Text, MAX_LENGTH) };
            let data = make(mode, vec![source(&files)], folder.path(), &options).expect("opens");
            data.counted(&mut |_| {}).expect("counts").summary().counts.clone()
        };
        let (held, kept) = (counts(true), counts(false));
        assert_eq!((held.rows, held.other_side, kept.rows, kept.other_side), (100, 300, 300, 100), "{mode:?}");
    }
}

#[test]
fn memory_is_refused_at_its_limit() {
    let folder = Folder::new();
    let files = write_files(&folder, "rows", &numbered(0, 2000), 500);
    let limited = |limit| {
        let options = Options { memory_bytes_max: Some(limit), ..Options::new(Content::Answers, MAX_LENGTH) };
        make(MODES[0], vec![source(&files)], folder.path(), &options)
    };
    let error = limited(20_000).expect_err("too much");
    assert!(matches!(error, DataError::MemoryFull { bytes: 20_001..=21_000, limit: 20_000, .. }), "{error}");
    assert!(with_hint(&error).contains("data.mode"));
    assert!(limited(1 << 20).is_ok());
}
