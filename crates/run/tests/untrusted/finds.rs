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
