//! Files of every kind, packed or not, read whole and from any place.

use std::path::Path;

use parquet::basic::Compression;
use plimsoll_data::{Position, Row, Source};
use serde_json::{Value, json};

use crate::fixtures::{Column, Folder, gzip, open, read_error, with_hint, write_parquet, zstd};

fn rows(source: &Source) -> Vec<(u64, Value)> {
    let row = |row: Row| (row.at.row, Value::Object(row.columns));
    source.all().map(|r| row(r.expect("a row"))).collect()
}

/// Every position handed out leads to the rows behind it.
fn check_positions(source: &Source) {
    for unit in 0..source.units() {
        let mut walk = source.rows_from(source.start(unit)).expect("opens");
        let mut places: Vec<(Position, Vec<Value>)> = Vec::new();
        loop {
            let position = walk.position();
            let text = serde_json::to_string(&position).expect("writes");
            assert_eq!(serde_json::from_str::<Position>(&text).expect("reads"), position);
            let row = walk.next().map(|row| Value::Object(row.expect("a row").columns));
            places.iter_mut().for_each(|(_, rest)| rest.extend(row.clone()));
            let over = row.is_none();
            places.push((position, row.into_iter().collect()));
            if over {
                break;
            }
        }
        for (position, expected) in places {
            let rest = source.rows_from(position).expect("opens again");
            let rest: Vec<Value> = rest.map(|row| Value::Object(row.expect("a row").columns)).collect();
            assert_eq!(rest, expected, "{position:?}");
        }
    }
}

#[track_caller]
fn check(name: &str, content: impl AsRef<[u8]>, expected: &[(u64, Value)]) {
    let folder = Folder::new();
    let source = open(&[folder.write(name, content)]).expect("opens");
    assert_eq!(rows(&source), expected, "{name}");
    check_positions(&source);
}

fn texts(list: &[(u64, &str)]) -> Vec<(u64, Value)> {
    list.iter().map(|(row, text)| (*row, json!({ "text": text }))).collect()
}

#[test]
fn lists_of_objects_are_read_one_at_a_time() {
    let expected = texts(&[(1, "a]}\","), (2, "ü\\"), (3, "")]);
    let elements = r#"{"text": "a]}\","},{"text":"ü\\" } , {"text":""}"#;
    for list in [format!("[{elements}]"), format!("\u{feff}\n [\n{elements}\n]\n"), format!("[{elements},]")] {
        check("a.json", &list, &expected);
        check("a.json.gz", gzip(&list), &expected);
        check("a.json.zst", zstd(&list), &expected);
        let around = format!(
            "{{\"version\": {{\"data\": [1]}}, \"n\":3, \"data\" : {}, \"more\": 1}}",
            list.trim_start_matches('\u{feff}')
        );
        check("a.json", &around, &expected);
    }
    check("a.json", "[]", &[]);
    check("a.json", "", &[]);
    // Lines under the wrong name are what half of all .json files are.
    check("a.json", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n", &texts(&[(1, "x"), (2, "y")]));
    check("a.json", "{\"text\": \"x\"}", &texts(&[(1, "x")]));
}

#[test]
fn rows_longer_than_any_buffer() {
    let long = "wörter ".repeat(100_000);
    let lines: String = (0..4).map(|i| format!("{}\n", json!({"text": format!("{i}{long}")}))).collect();
    let expected: Vec<(u64, Value)> = (0..4).map(|i| (i + 1, json!({"text": format!("{i}{long}")}))).collect();
    check("a.jsonl", &lines, &expected);
    check("a.jsonl.gz", gzip(&lines), &expected);
    check("a.jsonl.zst", zstd(&lines), &expected);
    check("a.json", format!("[{}]", lines.trim_end().replace('\n', ",")), &expected);
}

#[test]
fn packed_files_of_several_parts() {
    let (one, two) = ("{\"text\": \"a\"}\n{\"text\"", ": \"b\"}\n{\"text\": \"c\"}");
    let expected = texts(&[(1, "a"), (2, "b"), (3, "c")]);
    check("a.jsonl.gz", [gzip(one), gzip(two)].concat(), &expected);
    check("a.ndjson.zst", [zstd(one), zstd(two)].concat(), &expected);
    check("A.JSONL.GZ", gzip([one, two].concat()), &expected);
    check("a.jsonl", [one, two].concat().replace('\n', "\r\n"), &expected);
}

#[test]
fn text_is_cut_at_blank_lines() {
    let text = "\u{feff}one\r\nstill one\r\n\r\n \t\r\ntwo\n\n\nthree";
    let expected = texts(&[(1, "one\nstill one"), (5, "two"), (8, "three")]);
    check("a.txt", text, &expected);
    check("a.text.gz", gzip(text), &expected);
    check("a.txt.zst", zstd(text), &expected);
    check("a.txt", "\n\n", &[]);

    // No blank line anywhere: blocks of bounded size, cut at ends of lines.
    let line = "x".repeat(99);
    let folder = Folder::new();
    let source = open(&[folder.write("b.txt", format!("{line}\n").repeat(10_000))]).expect("opens");
    let blocks: Vec<Row> = source.all().map(|row| row.expect("a row")).collect();
    assert_eq!(blocks.len(), 4);
    let lines = blocks.iter().map(|row| row.columns["text"].as_str().expect("text").lines().count());
    assert_eq!(lines.sum::<usize>(), 10_000);
    check_positions(&source);
}

#[test]
fn row_groups_are_units_and_only_columns_of_use_are_read() {
    let folder = Folder::new();
    let schema =
        "message m { optional binary prompt (UTF8); required binary response (UTF8); optional binary junk (UTF8);
        optional group messages (LIST) { repeated group list { optional group element {
        optional binary role (UTF8); optional binary content (UTF8); } } } }";
    let group = |from: usize| -> Vec<Vec<String>> {
        ["p", "r", "j", "m"].map(|c| (from..from + 3).map(|i| format!("{c}{i}")).collect()).to_vec()
    };
    let path = folder.path().join("a.parquet");
    let texts = [group(0), group(3)];
    let views: Vec<Vec<Vec<&str>>> =
        texts.iter().map(|g| g.iter().map(|c| c.iter().map(String::as_str).collect()).collect()).collect();
    let groups: Vec<Vec<Column<'_>>> = views
        .iter()
        .map(|g| {
            // The second prompt of each group is null.
            let nested: Column<'_> = (&g[3], &[4, 4, 4], Some(&[0, 0, 0]));
            let prompts: Column<'_> = (&g[0][1..], &[1, 0, 1], None);
            vec![prompts, (&g[1], &[0, 0, 0], None), (&g[2], &[1, 1, 1], None), nested, nested]
        })
        .collect();
    write_parquet(&path, schema, &groups, Compression::SNAPPY);
    let source = open(&[&path]).expect("opens");
    assert_eq!(source.units(), 2);
    let all = rows(&source);
    assert_eq!(all.len(), 6);
    assert_eq!(all[4], (5, json!({"prompt": null, "response": "r4", "messages": [{"role": "m4", "content": "m4"}]})));
    check_positions(&source);

    let unknown = folder.path().join("b.parquet");
    let schema = "message m { optional binary body (UTF8); }";
    write_parquet(&unknown, schema, &[vec![(&["x"], &[1], None)]], Compression::SNAPPY);
    assert_eq!(rows(&open(&[&unknown]).expect("opens")), [(1, json!({"body": "x"}))]);
}

#[test]
fn folders_and_patterns() {
    let folder = Folder::new();
    let line = |text: &str| format!("{{\"text\": \"{text}\"}}\n");
    folder.write("b.jsonl", line("b"));
    folder.write("a.jsonl.gz", gzip(line("a")));
    folder.write(".hidden.jsonl", line("hidden"));
    folder.write("README.md", "no data");
    folder.write("dataset_info.json", "{\"description\": 1}");
    std::fs::create_dir(folder.path().join("more")).expect("a folder");
    folder.write("more/c.json", format!("[{}]", line("c")));
    let check = |entries: &[&str], expected: &[&str]| {
        let entries: Vec<String> = entries.iter().map(|e| format!("{}/{e}", folder.path().display())).collect();
        let source = Source::open(&entries).expect("opens");
        let texts: Vec<Value> = rows(&source).into_iter().map(|(_, row)| row["text"].clone()).collect();
        assert_eq!(texts, expected, "{entries:?}");
        assert_eq!(source.fingerprint().lines().count(), expected.len());
        assert_eq!(source.files().count(), expected.len());
    };
    check(&[""], &["a", "b"]);
    check(&["*.jsonl"], &["b"]);
    check(&["*"], &["a", "b"]);
    check(&["**/*"], &["a", "b", "c"]);
    check(&["**/*.json*"], &["a", "b", "c"]);
    check(&["more/c.json", "", "b.jsonl", "./b.jsonl"], &["c", "a", "b"]);
    check(&["[ab].jsonl"], &["b"]);

    let message = |entry: &str| {
        let error = Source::open(&[format!("{}/{entry}", folder.path().display())]).err();
        with_hint(&error.expect("is an error"))
    };
    for (entry, part) in [("*.parquet", "no file matches"), ("a***", "not a pattern"), ("none.jsonl", "cannot read")] {
        let message = message(entry);
        assert!(message.contains(part) && message.contains(entry) && message.contains("hint: "), "{message}");
    }
}

#[test]
fn names_that_promise_something_else() {
    let folder = Folder::new();
    let line = "{\"text\": \"x\"}\n";
    let check = |name: &str, content: &[u8], parts: &[&str]| {
        let message = read_error(&folder.write(name, content));
        for part in parts.iter().chain(&[name, "hint: "]) {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    };
    check("a.jsonl", &gzip(line), &["gzip", ".gz"]);
    check("a.jsonl", &zstd(line), &["zstd", ".zst"]);
    check("a.jsonl", b"PAR1 and more than twelve", &[".parquet"]);
    check("a.jsonl.gz", line.as_bytes(), &["gzip"]);
    check("a.jsonl.zst", &gzip(line), &["zstd", ".gz"]);
    check("a.parquet", b"no parquet but long enough", &["Parquet"]);
    check("a.jsonl", b"[\n{\"text\": \"x\"},\n{\"text\": \"y\"}\n]\n", &["JSON list", ".json"]);
    check("a.txt", b"\xff\xfea\0b\0", &["UTF-16", "iconv"]);
    check("a.json", b"{\"a\": {\"b\": 1},\n \"c\": [1]}", &["no rows", "data, rows"]);
    check("a.json", b"true", &["no rows"]);
    check("a.parquet.gz", &gzip(line), &["extension"]);
    check("a", b"x", &["extension"]);
}

#[test]
fn a_file_that_changes_is_noticed() {
    let folder = Folder::new();
    let line = format!("{{\"text\": \"{}\"}}\n", "x".repeat(90));
    let content = line.repeat(10_000);
    let path = folder.write("a.jsonl", &content);
    let source = open(&[&path]).expect("opens");
    let mut reading = source.rows_from(source.start(0)).expect("opens");
    assert!(reading.next().expect("a row").is_ok());
    std::fs::write(&path, &content[..content.len() / 2]).expect("shrinks");
    let last = reading.by_ref().last().expect("an error");
    let error = last.expect_err("shrank");
    assert!(!error.is_bad_row() && error.to_string().contains("changed while"), "{error}");
    assert!(reading.next().is_none());
    assert!(source.rows_from(source.start(0)).is_err());

    // One that grows is read as far as it went.
    std::fs::write(&path, [content.as_str(), &line].concat()).expect("grows");
    assert_eq!(source.all().filter(Result::is_ok).count(), 10_000);
    let position = Position { unit: 9, ..Position::default() };
    assert!(source.rows_from(position).is_err());
    assert!(Path::new(source.files().next().expect("a file")).ends_with("a.jsonl"));
}
