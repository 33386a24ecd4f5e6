//! What was found by trying for long.

use crate::harness::try_bytes;
use crate::targets::{TARGETS, Target};

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|target| target.name == name).expect(name)
}

#[track_caller]
fn check(name: &str, bytes: &[u8]) {
    let here = tempfile::tempdir().expect("a folder");
    assert_eq!(try_bytes(target(name), bytes, here.path()), Ok(()), "{name}");
}

/// A manifest names what to compare; `/dev/zero` has no bytes and no end.
#[test]
fn a_manifest_that_names_what_has_no_end() {
    check("manifest.json", br#"{"format":1,"files":{"/dev/zero":{"bytes":0,"xxh3_128":"0"}},"checksum":"0"}"#);
}

/// Columns are counted in sixteen bits by the compiler, and one more is added for an error at the last of them.
#[test]
fn a_template_with_a_line_too_long_to_be_counted() {
    for columns in [65_000, 65_534, 65_535, 65_536, 70_000] {
        check("chat_template.jinja", format!("{{{{ '{}", "x".repeat(columns)).as_bytes());
        check("chat_template.jinja", format!("{}{{{{ '", "x".repeat(columns)).as_bytes());
    }
}

/// Of an empty text or list there is no last letter to begin with.
#[test]
fn a_template_that_goes_backwards_through_nothing() {
    for slice in
        ["''[::-1]", "[][::-1]", "m.content[5:2:-1]", "m.content[:9:-1]", "(m.content or '')[::-9223372036854775808]"]
    {
        let template =
            format!("{{% for m in messages %}}{{{{ {slice} }}}}{{{{ (m.nothing or '')[::-1] }}}}{{% endfor %}}");
        check("chat_template.jinja", template.as_bytes());
    }
}

/// How many lengths are packed stands before them, for what texts share and for the rest; a decoder took memory for as many.
#[test]
fn a_page_with_more_lengths_than_values() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/parquet/delta.parquet");
    let whole = std::fs::read(file).expect("a fixture");
    for count_at in [0x50, 0x66] {
        assert_eq!(whole[count_at - 3..=count_at], [0x80, 1, 4, 24], "a block of 128 in four parts, 24 values");
        for claimed in [&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f][..], &[0xff, 0xff, 0xff, 0xff, 0x07], &[25]] {
            let mut bytes = whole.clone();
            bytes[count_at..count_at + claimed.len()].copy_from_slice(claimed);
            check("rows.parquet", &bytes);
        }
    }
}

/// Cut off in its decoder, or no JSON there.
#[test]
fn a_tokenizer_that_ends_early() {
    check("tokenizer.json", br#"{"version": "1.0", "decoder": {"type": "Byte"#);
    check("tokenizer.json", br#"{"version": "1.0", "decoder": {"type" 1}}"#);
    check("tokenizer.json", br#"{"version": "1.0", "decoder": {"type": "\ud800"}}"#);
}
