//! Files with something wrong in them: what is lost, what goes on, what is said.

use parquet::basic::{Compression, ZstdLevel};
use plimsoll_data::{DataError, ROW_BYTES_MAX};

use crate::fixtures::{Column, Folder, gzip, open, with_hint, write_parquet, zstd};

/// The texts that could be read, and the errors between them.
fn read(folder: &Folder, name: &str, content: impl AsRef<[u8]>) -> (Vec<String>, Vec<DataError>) {
    let source = match open(&[folder.write(name, content)]) {
        Ok(source) => source,
        Err(error) => return (Vec::new(), vec![error]),
    };
    let (mut texts, mut errors) = (Vec::new(), Vec::new());
    for row in source.all() {
        match row {
            Ok(row) => {
                texts.push(row.columns.get("text").and_then(|text| text.as_str()).unwrap_or_default().to_owned())
            }
            Err(error) => errors.push(error),
        }
    }
    (texts, errors)
}

#[test]
fn a_bad_row_costs_itself() {
    let folder = Folder::new();
    let check = |name: &str, content: &[u8], texts: &[&str], errors: &[&str]| {
        let (got, faults) = read(&folder, name, content);
        assert_eq!(got, texts, "{name}");
        assert_eq!(faults.len(), errors.len(), "{faults:?}");
        for (fault, part) in faults.iter().zip(errors) {
            let message = with_hint(fault);
            assert!(fault.is_bad_row() && fault.rows_lost() == 1, "{message}");
            assert!(message.contains(part) && message.contains("hint: "), "{part:?} is not in {message:?}");
        }
    };
    check(
        "a.jsonl",
        b"{\"text\": \"a\"}\n{oops}\n[1]\n{\"text\": \"\xff\"}\n{\"text\": \"b\"}\n{\"text\": \"c",
        &["a", "b"],
        &[
            "row 2: not valid JSON",
            "row 3: expected a JSON object, found a list",
            "row 4: the row is not valid UTF-8",
            "row 6: the file ends within the row",
        ],
    );
    check(
        "a.json",
        b"[{\"text\": \"a\"}, {oops}, 7, [], {\"text\": \"\xff\"}, {\"text\": \"b\"}, {\"text\": \"c",
        &["a", "b"],
        &[
            "row 2: not valid JSON",
            "row 3: expected a JSON object, found a number",
            "row 4",
            "row 5: the row is not valid UTF-8",
            "row 7: the file ends within the row",
        ],
    );
    check(
        "b.json",
        b"[{\"text\": \"a\"}",
        &["a"],
        &["row 2: the file ends within the row: not valid JSON: the list has no end"],
    );
    check("a.txt", b"one\n\ntw\xffo\n\nthree", &["one", "three"], &["row 3: the row is not valid UTF-8"]);
    let deep = format!("{{\"text\": \"a\"}}\n{}\n{{\"text\": \"b\"}}", "[".repeat(100_000));
    check("deep.jsonl", deep.as_bytes(), &["a", "b"], &["row 2: not valid JSON: recursion limit"]);
}

#[test]
fn a_row_too_large_is_passed_over() {
    let folder = Folder::new();
    let mut lines = b"{\"text\": \"a\"}\n{\"text\": \"".to_vec();
    lines.resize(ROW_BYTES_MAX + 100, b'x');
    lines.extend_from_slice(b"\"}\n{\"text\": \"b\"}");
    let list = [b"[", &lines[..], b"]"].concat();
    for (name, content) in [("a.jsonl", &lines), ("a.jsonl.zst", &zstd(&lines)), ("a.json", &list)] {
        let (texts, errors) = read(&folder, name, content);
        assert_eq!(texts, ["a", "b"], "{name}");
        assert!(matches!(errors[..], [DataError::RowTooLarge { .. }]) && errors[0].is_bad_row(), "{name}: {errors:?}");
    }
}

#[test]
fn packed_data_that_ends_early_or_is_damaged_ends_the_reading() {
    let folder = Folder::new();
    let lines: String = (0..5000).map(|i| format!("{{\"text\": \"{}\"}}\n", i * 7919 % 10_007)).collect();
    for (name, whole) in [("a.jsonl.gz", gzip(&lines)), ("a.jsonl.zst", zstd(&lines))] {
        let (_, errors) = read(&folder, name, &whole[..whole.len() - 20]);
        let last = errors.last().expect("an error");
        assert!(matches!(last, DataError::CutShort { .. }) && !last.is_bad_row(), "{last}");
        let mut damaged = whole.clone();
        let middle = whole.len() / 2;
        damaged[middle..middle + 40].fill(0xA5);
        let (_, errors) = read(&folder, name, &damaged);
        let last = errors.last().expect("an error");
        assert!(matches!(last, DataError::Unpack { .. } | DataError::CutShort { .. }), "{last}");
    }
}

#[test]
fn a_damaged_row_group_costs_its_rows_and_the_next_one_is_read() {
    let folder = Folder::new();
    let schema = "message m { required binary text (UTF8); }";
    let texts: Vec<Vec<String>> =
        (0..3).map(|g| (0..50).map(|i| format!("{g} {} words", i * 31 % 17)).collect()).collect();
    let views: Vec<Vec<&str>> = texts.iter().map(|g| g.iter().map(String::as_str).collect()).collect();
    let groups: Vec<Vec<Column<'_>>> = views.iter().map(|v| vec![(&v[..], &[0; 50][..], None)]).collect();
    for codec in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())] {
        let path = folder.path().join("a.parquet");
        write_parquet(&path, schema, &groups, codec);
        let mut bytes = std::fs::read(&path).expect("reads");
        bytes[4..24].fill(0xFF);
        let (got, errors) = read(&folder, "bad.parquet", &bytes);
        assert_eq!(got.len(), 100, "{codec:?} {errors:?}");
        let [error] = &errors[..] else { panic!("{errors:?}") };
        assert!(error.is_bad_row() && error.rows_lost() == 50, "{error}");
        assert!(error.to_string().contains("bad.parquet, row 1: the row group is damaged"), "{error}");
    }
}

/// Every single byte of small files changed in a few ways: rows or errors, never a panic, and an end.
#[test]
fn no_damage_makes_a_reader_panic() {
    // Panics that are caught would still be printed, thousands of them.
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !plimsoll_data::decoding_untrusted() {
            say(info);
        }
    }));
    let folder = Folder::new();
    let schema = "message m { required binary text (UTF8); optional group messages (LIST) { repeated group list {
        optional group element { optional binary role (UTF8); optional binary content (UTF8); } } } }";
    let path = folder.path().join("seed.parquet");
    let nested: Column<'_> = (&["user", "assistant"], &[4, 4], Some(&[0, 1]));
    write_parquet(&path, schema, &[vec![(&["one"], &[0], None), nested, nested]], Compression::SNAPPY);
    let parquet = std::fs::read(&path).expect("reads");
    let json = br#"{"data": [{"text": "a\"\\b", "n": [1, {}]}, {"text": "c"}]}"#.to_vec();
    let lines = b"{\"text\": \"a\"}\r\n\n{\"text\": \"b\\u00e9\"}\n".to_vec();
    for (name, seed) in [
        ("a.parquet", parquet),
        ("a.json", json.clone()),
        ("a.json.gz", gzip(&json)),
        ("a.jsonl.zst", zstd(&lines)),
        ("a.jsonl", lines.clone()),
        ("a.txt", lines),
    ] {
        for i in 0..seed.len() {
            for change in [0x00, 0xFF, seed[i] ^ 0x01, seed[i] ^ 0x80] {
                let mut bytes = seed.clone();
                bytes[i] = change;
                read_all(&folder, name, &bytes);
            }
            read_all(&folder, name, &seed[..i]);
            read_all(&folder, name, &[&seed[..i], &seed[(i + 3).min(seed.len())..]].concat());
        }
    }
}

fn read_all(folder: &Folder, name: &str, content: &[u8]) {
    if let Ok(source) = open(&[folder.write(name, content)]) {
        assert!(source.all().count() < 10_000, "{name}: {content:?}");
    }
}
