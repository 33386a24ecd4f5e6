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

/// Cut off in its decoder, or no JSON there.
#[test]
fn a_tokenizer_that_ends_early() {
    check("tokenizer.json", br#"{"version": "1.0", "decoder": {"type": "Byte"#);
    check("tokenizer.json", br#"{"version": "1.0", "decoder": {"type" 1}}"#);
    check("tokenizer.json", br#"{"version": "1.0", "decoder": {"type": "\ud800"}}"#);
}
