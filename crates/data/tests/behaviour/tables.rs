//! CSV and TSV: what RFC 4180 says, what other tools write, and what is wrong with the rest.

use plimsoll_data::{ColumnNames, Content, DataError, Options, Position, Rows};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fed::{MODES, make, source};
use crate::fixtures::{Folder, gzip, open, plain_tokenizer, read_error, shown, zstd};

fn rows(name: &str, content: impl AsRef<[u8]>) -> Vec<Result<Value, String>> {
    let folder = Folder::new();
    let source = open(&[folder.write(name, content)]).expect("opens");
    let row = |row: Result<plimsoll_data::Row, DataError>| {
        row.map(|row| Value::Object(row.columns)).map_err(|error| error.to_string())
    };
    source.all().map(row).collect()
}

#[track_caller]
fn check(name: &str, content: impl AsRef<[u8]>, expected: &[Value]) {
    assert_eq!(rows(name, content), expected.iter().cloned().map(Ok).collect::<Vec<_>>());
}

#[test]
fn fields_are_texts_quoted_or_not() {
    let expected = [json!({"prompt": "a", "response": "b"}), json!({"prompt": "c, d", "response": "e\n\"f\"\r\ng"})];
    let text = "prompt,response\na,b\n\"c, d\",\"e\n\"\"f\"\"\r\ng\"\n";
    check("x.csv", text, &expected);
    check("x.csv", text.trim_end(), &expected);
    check("x.csv.gz", gzip(text), &expected);
    check("x.csv.zst", zstd(text), &expected);
    check("x.csv", format!("\u{feff}{text}"), &expected);
    check("x.csv", "prompt,response\r\na,b\r\n", &expected[..1]);
    check("x.csv", "\n\r\n prompt , response \n\na,b\n\n", &expected[..1]);
    check("x.tsv", "prompt\tresponse\na\tb\n\"c, d\"\t\"e\n\"\"f\"\"\r\ng\"", &expected);
    check("x.csv", "a,b,c\n,\"\",x\"y\n", &[json!({"a": null, "b": "", "c": "x\"y"})]);
    // The numbers that pandas writes have a column without a name.
    check("x.csv", ",text\n0,one\n1,two\n", &[json!({"text": "one"}), json!({"text": "two"})]);
    check("x.csv", "", &[]);
    check("x.csv", "text\n", &[]);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let faults = rows("x.csv", "a,b\n1,2\n\"x\ny\",3\nonly\n1,2,3\n\"p\"q,4\n\u{1}\u{2},5\n\"open,6\n7,8\n");
    let message = |index: usize| faults[index].as_ref().expect_err("bad").clone();
    assert_eq!(faults.len(), 7, "{faults:?}");
    assert!(faults[0].is_ok() && faults[1].is_ok() && faults[5].is_ok());
    assert!(message(2).contains("x.csv, row 5: ") && message(2).contains("1 fields, the header 2"), "{}", message(2));
    assert!(message(3).contains("row 6: ") && message(3).contains("3 fields"));
    assert!(message(4).contains("row 7: ") && message(4).contains("closing quote"));
    assert!(message(6).contains("row 9: ") && message(6).contains("never closed"), "{}", message(6));
    assert!(rows("x.csv", b"a,b\n\xff,1\n")[0].as_ref().is_err_and(|error| error.contains("UTF-8")));
    let folder = Folder::new();
    for (content, part) in [
        ("a,a\n1,2\n", "two columns are called `a`"),
        ("a;b\n1;2\n", "its only column is `a;b`"),
        ("a,\u{1b}[2J,\u{1b}[2J\n", "`\\u{1b}[2J`"),
        ("\"a,b\n", "never closed"),
    ] {
        let error = read_error(&folder.write("x.csv", content));
        assert!(error.contains(part) && error.contains("hint: ") && !error.contains('\u{1b}'), "{error}");
    }
    let wide = "x,".repeat(20_000);
    assert!(read_error(&folder.write("x.csv", wide)).contains("20001 columns"));
}

#[test]
fn a_row_beyond_the_limit_is_passed_over() {
    let large = format!("text,label\n{},{}\nsmall,1\n", "x".repeat(40 << 20), "y".repeat(30 << 20));
    let rows = rows("x.csv", large);
    assert!(rows[0].as_ref().is_err_and(|error| error.contains("more than 67108864")), "{:?}", rows[0].is_ok());
    assert_eq!(rows[1], Ok(json!({"text": "small", "label": "1"})));
}

#[test]
fn tables_train_in_every_mode_and_columns_are_named() {
    let folder = Folder::new();
    let lines: String = (0..60).map(|i| format!("\"q\n{i}\",\"{}\"\n", "r".repeat(1 + i % 5))).collect();
    let files = [folder.write("x.csv", format!("question text,reply\n{lines}"))];
    let columns = ColumnNames::new([("prompt", "question text"), ("response", "reply")]).expect("known");
    let options = Options { columns, ..Options::new(Content::Answers, 16) };
    let mut first = None;
    for mode in MODES {
        let data = make(mode, vec![source(&files)], folder.path(), &options).expect("opens");
        let mut texts: Vec<String> =
            data.first(99).expect("reads").iter().map(|e| shown(&plain_tokenizer(), e.view()).0).collect();
        texts.sort();
        assert_eq!(first.get_or_insert_with(|| texts.clone()), &texts, "{mode:?}");
    }
    assert_eq!(first.expect("some").len(), 60);
    // Classes in a table of texts.
    let labelled = [folder.write("y.csv", "text,label\ngood,1\nbad,0\n")];
    let data = make(MODES[0], vec![source(&labelled)], folder.path(), &Options::new(Content::Labelled, 16));
    let labels: Vec<_> = data.expect("opens").first(9).expect("reads").iter().map(|example| example.label).collect();
    assert_eq!(labels, [Some(1), Some(0)]);
}

fn quoted(field: &str) -> String {
    format!("\"{}\"", field.replace('"', "\"\""))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is written by the standard's rules is read back, from every row on.
    #[test]
    fn what_is_written_is_read(
        fields in proptest::collection::vec(("[\\PC\n\r\t\",;|]{0,12}", "[a-z0-9 ]{1,9}"), 0..20),
        tabs: bool,
        windows: bool,
    ) {
        let (separator, name) = if tabs { ("\t", "x.tsv") } else { (",", "x.csv") };
        let end = if windows { "\r\n" } else { "\n" };
        let line = |(a, b): &(String, String)| format!("{}{separator}{b}{end}", quoted(a));
        let text = format!("prompt{separator}response{end}{}", fields.iter().map(line).collect::<String>());
        let folder = Folder::new();
        let source = open(&[folder.write(name, text)]).expect("opens");
        let mut rows = source.rows_from(source.start(0)).expect("opens");
        let mut positions: Vec<Position> = Vec::new();
        for (a, b) in &fields {
            positions.push(Rows::position(&rows));
            let row = rows.next().expect("a row").expect("readable");
            prop_assert_eq!(Value::Object(row.columns), json!({"prompt": a, "response": b}));
        }
        prop_assert!(rows.next().is_none());
        for (position, (a, _)) in positions.into_iter().zip(&fields) {
            let row = source.rows_from(position).expect("opens").next().expect("a row").expect("readable");
            prop_assert_eq!(&row.columns["prompt"], a);
        }
    }

    /// Any bytes are rows or errors, as a table, as lines of JSON, as a list and as text.
    #[test]
    fn any_bytes_are_rows_or_errors(
        bytes in proptest::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"\",\n\r\t{}[]:\\ax1".to_vec())], 0..200),
        name in prop::sample::select(vec!["x.csv", "x.tsv", "x.jsonl", "x.json", "x.txt", "x.jsonl.gz", "x.csv.zst", "x.parquet", "x.arrow"]),
    ) {
        let folder = Folder::new();
        let bytes = match name {
            "x.jsonl.gz" => gzip(bytes),
            "x.csv.zst" => zstd(bytes),
            "x.parquet" => [b"PAR1".as_slice(), &bytes, &(bytes.len() as u32).to_le_bytes(), b"PAR1"].concat(),
            _ => bytes,
        };
        let read = open(&[folder.write(name, bytes)]).map(|source| source.all().count());
        prop_assert!(read.is_err() || read.is_ok_and(|rows| rows <= 201));
    }
}

/// A pipe can be read once, and opening it may wait for ever.
#[test]
fn pipes_and_devices_are_refused() {
    let folder = Folder::new();
    let pipe = folder.path().join("rows.jsonl");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("runs");
    assert!(made.success());
    for path in [pipe.as_path(), std::path::Path::new("/dev/null"), std::path::Path::new("/dev/zero")] {
        let error = open(&[path]).err().expect("is refused");
        assert!(matches!(error, DataError::NotAFile { .. }), "{error}");
    }
    // In a folder, too, it is no file of rows.
    folder.write("a.jsonl", "{\"text\": \"x\"}");
    assert_eq!(open(&[folder.path()]).expect("opens").files().count(), 1);
}
