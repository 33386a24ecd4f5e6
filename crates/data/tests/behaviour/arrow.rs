//! Arrow files as pyarrow and `datasets` write them, and what they turn into when damaged.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_data::{ColumnNames, Content, DataError, Dataset, Options, Position, Row, Rows, Source};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixtures::{Folder, open, plain_tokenizer, read_error, with_hint};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/arrow").join(name)
}

fn rows_of(source: &Source) -> Vec<Value> {
    source.all().map(|row| Value::Object(row.expect("readable").columns)).collect()
}

/// The rows that `fixtures/make_arrow.py` wrote.
fn expected() -> Vec<Value> {
    rows_of(&open(&[fixture("rows.jsonl")]).expect("opens"))
}

/// Streams and files, packed or not, in batches of several sizes, between columns of types that are passed over.
#[test]
fn every_kind_of_file_gives_the_rows_that_were_written() {
    let expected = expected();
    for (name, batches) in [("stream.arrow", 3), ("lz4.arrow", 2), ("zstd.arrow", 2), ("plain.feather", 1)] {
        let source = open(&[fixture(name)]).expect("opens");
        assert_eq!(source.units(), batches, "{name}");
        assert_eq!(rows_of(&source), expected, "{name}");
    }
}

#[test]
fn reading_goes_on_from_any_row() {
    let source = open(&[fixture("stream.arrow")]).expect("opens");
    let mut positions: Vec<(Position, String)> = Vec::new();
    for unit in 0..source.units() {
        let mut rows = source.rows_from(source.start(unit)).expect("opens");
        loop {
            let position = Rows::position(&rows);
            let Some(row) = rows.next() else { break };
            let row: Row = row.expect("readable");
            positions.push((position, row.at.to_string()));
        }
    }
    assert_eq!(positions.len(), 25);
    assert!(positions[24].1.ends_with("stream.arrow, row 25"), "{}", positions[24].1);
    for (position, place) in positions {
        let row = source.rows_from(position).expect("opens").next().expect("a row").expect("readable");
        assert_eq!(row.at.to_string(), place);
    }
}

#[test]
fn numbers_of_every_width_and_lists_of_fixed_size() {
    // No format knows these columns, so each is asked for by a name of its own, or the file is read whole.
    let rows = rows_of(&open(&[fixture("wide.feather")]).expect("opens"));
    let whole = |n: i64| -> Vec<(String, Value)> {
        ["int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64"]
            .map(|kind| (format!("n{kind}"), json!(n)))
            .to_vec()
    };
    let mut first = serde_json::Map::from_iter(whole(1));
    first.extend([("ndouble".to_owned(), json!(1.0)), ("fixed".to_owned(), json!([1, 2]))]);
    first.extend([("nothing".to_owned(), Value::Null), ("bytes".to_owned(), json!("a"))]);
    assert_eq!(rows[0], Value::Object(first));
    assert_eq!((&rows[1]["nint8"], &rows[1]["fixed"], &rows[1]["bytes"]), (&Value::Null, &Value::Null, &json!("")));
    assert_eq!(
        (&rows[2]["nuint64"], &rows[2]["fixed"], &rows[2]["bytes"]),
        (&json!(3), &json!([3, null]), &Value::Null)
    );
    let names = ColumnNames::new([("text", "bytes"), ("label", "nint8")]).expect("known");
    let named = open(&[fixture("wide.feather")]).expect("opens").with_columns(&names).expect("opens");
    assert_eq!(rows_of(&named)[0], json!({"text": "a", "label": 1}));
}

#[test]
fn folders_of_datasets_are_sources() {
    let saved = open(&[fixture("saved")]).expect("opens");
    let names: Vec<String> =
        saved.files().map(|file| file.file_name().expect("a name").display().to_string()).collect();
    assert_eq!(names, ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]);
    let pick = |row: &Value| json!({"prompt": row["prompt"], "response": row["response"], "messages": row["messages"]});
    assert_eq!(rows_of(&saved), expected().iter().map(pick).collect::<Vec<_>>());
    let several = open(&[fixture("splits")]).err().expect("which one?");
    assert!(matches!(several, DataError::SeveralSplits { .. }), "{several}");
    let several = with_hint(&several);
    assert!(several.contains("train, test") && several.contains("splits/train"), "{several}");
    assert_eq!(rows_of(&open(&[fixture("splits/test")]).expect("opens")).len(), 5);
    let data = Dataset::from_files(&[fixture("saved")], &plain_tokenizer(), &Options::new(Content::Answers, 300));
    assert!(data.is_err_and(|error| error.to_string().contains("no assistant turn")), "half the rows have none");
}

/// The folders in which `datasets` and the hub's client keep what they loaded.
#[test]
fn local_caches_are_sources() {
    let folder = Folder::new();
    let put = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
        fs::write(path, content).expect("writes");
    };
    let arrow = fs::read(fixture("stream.arrow")).expect("is there");
    for name in ["cache/x-train-00000-of-00002.arrow", "cache/x-train-00001-of-00002.arrow", "cache/cache-0f.arrow"] {
        put(name, &arrow);
    }
    put("cache/dataset_info.json", b"{}");
    assert_eq!(rows_of(&open(&[folder.path().join("cache")]).expect("opens")).len(), 50);
    put("cache/x-test.arrow", &arrow);
    let error = with_hint(&open(&[folder.path().join("cache")]).err().expect("two splits"));
    assert!(error.contains("test, train") && error.contains("cache/*train*"), "{error}");
    let pattern = folder.path().join("cache/*train*");
    assert_eq!(rows_of(&open(&[pattern]).expect("opens")).len(), 50);

    put("datasets--me--ships/refs/main", b"abc123\n");
    put("datasets--me--ships/snapshots/abc123/data/train-00000-of-00001.jsonl", b"{\"text\": \"new\"}");
    put("datasets--me--ships/snapshots/old/data/train-00000-of-00001.jsonl", b"{\"text\": \"old\"}");
    assert_eq!(rows_of(&open(&[folder.path().join("datasets--me--ships")]).expect("opens")), [json!({"text": "new"})]);
}

#[test]
fn what_cannot_be_read_is_said() {
    let names = ColumnNames::new([("prompt", "when")]).expect("known");
    let source = open(&[fixture("stream.arrow")]).expect("opens").with_columns(&names).expect("opens");
    let error = source.all().next().expect("an error").expect_err("an error");
    let error = with_hint(&error);
    assert!(error.contains("`when` is of type timestamp") && error.contains("hint: "), "{error}");
    let folder = Folder::new();
    let whole = fs::read(fixture("stream.arrow")).expect("is there");
    for (bytes, part) in [
        (whole.len() / 2, "claims a head of"),
        (whole.len() - 300, "ends within"),
        (5, "ends within"),
        (0, "no schema"),
    ] {
        let error = read_error(&folder.write("cut.arrow", &whole[..bytes]));
        assert!(error.contains(part) && error.contains("cut.arrow"), "{bytes}: {error}");
    }
    let error = read_error(&folder.write("rows.jsonl", &whole));
    assert!(error.contains("let its name end in .arrow"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever bytes are changed or cut off: rows or errors, no panic, and no more memory than a batch may take.
    #[test]
    fn damage_is_an_error_or_other_rows(
        which in 0usize..4,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        words in proptest::collection::vec((any::<prop::sample::Index>(), prop_oneof![Just(u32::MAX), Just(i32::MAX as u32), Just(1 << 28), any::<u32>()]), 0..2),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let name = ["stream.arrow", "lz4.arrow", "zstd.arrow", "wide.feather"][which];
        let mut bytes = fs::read(fixture(name)).expect("is there");
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        for (at, word) in words {
            let at = at.index(bytes.len() - 4) & !3;
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = Folder::new();
        let path = folder.write("damaged.arrow", &bytes);
        if let Ok(source) = open(&[path]) {
            // A claim of four billion rows without columns is as good as any other; they need not all be read.
            for row in source.all().take(2000) {
                if let Err(error) = row {
                    prop_assert!(error.hint().is_some());
                }
            }
        }
    }
}
