//! Files to rows, and what is wrong with them.

use std::path::Path;

use parquet::basic::{Compression, ZstdLevel};
use plimsoll_data::{Content, Dataset, Format, Options, RowFormat};
use serde_json::{Value, json};

use crate::fixtures::{Column, Folder, build, open, plain_tokenizer, read_error, shown, with_hint, write_parquet};

fn columns(files: &[impl AsRef<Path>]) -> Vec<(u64, Value)> {
    let source = open(files).expect("opens");
    let rows = source.all().map(|row| {
        let row = row.expect("a row");
        (row.at.row, Value::Object(row.columns))
    });
    rows.collect()
}

#[test]
fn jsonl_rows_are_numbered_by_line() {
    let folder = Folder::new();
    let path = folder.write("a.jsonl", "\u{feff}{\"text\": \"one\"}\r\n\n  \n{\"text\": \"zwei ü\"}");
    let expected = [(1, json!({"text": "one"})), (4, json!({"text": "zwei ü"}))];
    assert_eq!(columns(&[path]), expected);
}

#[test]
fn parquet_strings_in_several_groups_of_any_codec() {
    let folder = Folder::new();
    let schema = "message m { optional binary prompt (UTF8); optional binary response (UTF8); }";
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4_RAW,
        Compression::BROTLI(Default::default()),
    ] {
        let path = folder.path().join("a.parquet");
        let one: Vec<Column<'_>> = vec![(&["p1", "p2"], &[1, 1], None), (&["r1"], &[1, 0], None)];
        let two: Vec<Column<'_>> = vec![(&["p3"], &[1], None), (&["r3"], &[1], None)];
        write_parquet(&path, schema, &[one, two], codec);
        let expected = [
            (1, json!({"prompt": "p1", "response": "r1"})),
            (2, json!({"prompt": "p2", "response": null})),
            (3, json!({"prompt": "p3", "response": "r3"})),
        ];
        assert_eq!(columns(&[path]), expected, "{codec:?}");
    }
}

#[test]
fn parquet_conversations_are_lists_of_groups() {
    let folder = Folder::new();
    let path = folder.path().join("chat.parquet");
    let schema = "message m { optional group messages (LIST) { repeated group list { optional group element {
        optional binary role (UTF8); optional binary content (UTF8); } } } }";
    let roles: Column<'_> = (&["user", "assistant"], &[4, 4], Some(&[0, 1]));
    let contents: Column<'_> = (&["How heavy?", "9 tons"], &[4, 4], Some(&[0, 1]));
    write_parquet(&path, schema, &[vec![roles, contents]], Compression::SNAPPY);
    let expected = json!({"messages": [
        {"role": "user", "content": "How heavy?"},
        {"role": "assistant", "content": "9 tons"},
    ]});
    assert_eq!(columns(&[&path]), [(1, expected)]);

    let tokenizer = plain_tokenizer();
    let options = Options::new(Content::Answers, 200);
    let data = Dataset::from_files(&[path], &tokenizer, &options).expect("builds");
    assert_eq!(data.summary().format, RowFormat::Messages);
    assert_eq!(shown(&tokenizer, data.first(1).expect("readable")[0].view()).1, ["9 tons<|end|>"]);
}

#[test]
fn several_files_follow_one_another() {
    let folder = Folder::new();
    let a = folder.write("a.jsonl", "{\"text\": \"a\"}");
    let b = folder.write("b.ndjson", "{\"text\": \"b\"}\n{\"text\": \"c\"}\n");
    let empty = folder.write("empty.jsonl", "");
    let texts: Vec<Value> = columns(&[a, empty, b]).into_iter().map(|(_, row)| row["text"].clone()).collect();
    assert_eq!(texts, [json!("a"), json!("b"), json!("c")]);
}

#[test]
fn unreadable_files_are_named() {
    let folder = Folder::new();
    let check = |path: &Path, parts: &[&str]| {
        let message = read_error(path);
        for part in parts.iter().chain(&["hint: "]) {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    };
    check(&folder.path().join("none.jsonl"), &["none.jsonl", "cannot read"]);
    check(folder.path(), &["no data file", "**/*"]);
    check(&folder.write("a.xlsx", "x"), &["a.xlsx", ".jsonl", ".parquet"]);
    check(&folder.write("a.parquet", "no table"), &["a.parquet", "Parquet", "too few"]);
    check(
        &folder.write("b.jsonl", "{\"text\": \"x\"}\n{\"text\": oops}\n"),
        &["b.jsonl, row 2", "not valid JSON", "column 10"],
    );
    check(&folder.write("c.jsonl", "{\"text\": \"cut o"), &["c.jsonl, row 1", "not valid JSON"]);
    check(&folder.write("d.jsonl", "[1]\n"), &["d.jsonl, row 1", "a list"]);
    check(&folder.write("e.jsonl", b"{\"text\": \"\xff\"}\n"), &["e.jsonl, row 1", "UTF-8"]);
}

#[test]
fn a_truncated_parquet_file_is_an_error_not_a_panic() {
    let folder = Folder::new();
    let path = folder.path().join("a.parquet");
    let group: Vec<Column<'_>> = vec![(&["one", "two"], &[1, 1], None)];
    let schema = "message m { optional binary text (UTF8); }";
    write_parquet(&path, schema, &[group], Compression::SNAPPY);
    let whole = std::fs::read(&path).expect("reads");
    for cut in [0, 4, 20, whole.len() / 2, whole.len() - 1] {
        let path = folder.write("cut.parquet", &whole[..cut]);
        assert!(read_error(&path).contains("cut.parquet"), "{cut}");
    }
    // Pages overwritten, footer whole.
    let mut pages = whole.clone();
    pages[4..30].fill(0xEE);
    assert!(read_error(&folder.write("bad.parquet", &pages)).contains("bad.parquet, row 1"));
}

#[test]
fn bad_rows_say_which_what_and_what_is_accepted() {
    let tokenizer = plain_tokenizer();
    let check = |rows: &[Value], format: Format, parts: &[&str]| {
        let options = Options { format, ..Options::new(Content::Answers, 100) };
        let message = with_hint(&build(rows, &tokenizer, &options).expect_err("is bad"));
        for part in parts.iter().chain(&["rows.jsonl", "hint: "]) {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    };
    let fine = json!({"prompt": "p", "response": "r"});
    let auto = Format::Auto;
    check(&[], auto, &["no rows"]);
    check(&[json!({"body": "x", "id": 1})], auto, &["row 1", "`body`, `id`", "`text`", "`messages`"]);
    check(&[json!({"text": null})], auto, &["row 1", "`text` (null)"]);
    check(&[fine.clone(), json!({"prompt": "p"})], auto, &["row 2", "`prompt`", "`instruction`"]);
    check(&[fine.clone(), json!({"prompt": 1, "response": "r"})], auto, &["row 2", "`prompt` is a number"]);
    check(
        std::slice::from_ref(&fine),
        Format::As(RowFormat::Text),
        &["row 1", "format `text`", "`prompt`, `response`"],
    );
    check(&[json!({"messages": "hi"})], auto, &["`messages` is a string"]);
    check(&[json!({"messages": []})], auto, &["no assistant turn"]);
    check(&[json!({"messages": [{"role": "user", "content": 3}]})], auto, &["`messages[0].content` is a number"]);
    check(&[json!({"messages": [{"content": "x"}]})], auto, &["`messages[0].role` is null"]);

    let options = Options::new(Content::Text, 100);
    let message = build(&[fine], &tokenizer, &options).expect_err("is no text").to_string();
    assert!(message.contains("row 1") && message.contains("prompt-response"), "{message}");
}

#[test]
fn synonyms_and_the_optional_input() {
    let tokenizer = plain_tokenizer();
    let rows = [
        json!({"instruction": "Add.", "input": "1 and 2", "output": "3"}),
        json!({"instruction": "Say hi.", "input": "", "output": "hi"}),
        json!({"instruction": "Say ho.", "output": "ho"}),
        json!({"question": "Why?", "answer": "Because."}),
        json!({"prompt": "p", "response": "r", "text": "ignored"}),
    ];
    let data = build(&rows, &tokenizer, &Options::new(Content::Answers, 100)).expect("builds");
    let shown: Vec<_> = (0..data.len()).map(|i| shown(&tokenizer, data.get(i)).0).collect();
    let expected =
        ["Add.\n\n1 and 23<|end|>", "Say hi.hi<|end|>", "Say ho.ho<|end|>", "Why?Because.<|end|>", "pr<|end|>"];
    assert_eq!(shown, expected);
}
