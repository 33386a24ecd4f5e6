//! Which crate may use which, as ARCHITECTURE.md has it, and that plans and schedules know no operator by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate with those it may depend on. Tests may use more: see [`FOR_TESTS`].
const MAY_USE: &[(&str, &[&str])] = &[
    ("graph", &[]),
    ("files", &[]),
    ("speech", &[]),
    ("models", &["graph"]),
    ("plan", &["graph"]),
    ("runtime", &["graph", "plan"]),
    ("cpu", &["graph", "plan", "runtime"]),
    ("cuda", &["graph", "plan", "runtime", "files"]),
    ("data", &["files"]),
    ("train", &["graph", "models", "plan", "runtime", "data", "files"]),
    ("observe", &["plan", "speech", "train"]),
    ("run", &["graph", "models", "plan", "runtime", "cpu", "cuda", "data", "train"]),
    ("cli", &["plan", "data", "train", "run", "observe", "files", "speech"]),
    ("conformance", &["graph", "plan", "runtime", "cpu", "cuda"]),
];

/// What tests use besides.
const FOR_TESTS: &[(&str, &[&str])] = &[("plan", &["models"]), ("train", &["cpu", "cuda"])];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The crates of the workspace named in one table of a manifest.
fn dependencies(manifest: &str, table: &str) -> BTreeSet<String> {
    let head = format!("[{table}]");
    let lines = manifest.lines().skip_while(|line| line.trim() != head).skip(1);
    let entries = lines.take_while(|line| !line.trim_start().starts_with('['));
    let names = entries.filter_map(|line| line.split(['.', '=', ' ']).next());
    names.filter_map(|name| name.trim().strip_prefix("plimsoll-")).map(str::to_owned).collect()
}

fn allowed<'a>(table: &'a [(&str, &[&str])], name: &str) -> &'a [&'a str] {
    table.iter().find(|(known, _)| *known == name).map_or(&[], |(_, uses)| uses)
}

#[test]
fn crates_use_only_those_below_them() {
    let mut faults = Vec::new();
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(root().join("crates")).expect("readable").filter_map(Result::ok) {
        let name = entry.file_name().into_string().expect("UTF-8");
        let Ok(manifest) = fs::read_to_string(entry.path().join("Cargo.toml")) else { continue };
        if !MAY_USE.iter().any(|(known, _)| *known == name) {
            faults.push(format!("{name} is not in the table"));
        }
        for used in dependencies(&manifest, "dependencies") {
            if !allowed(MAY_USE, &name).contains(&used.as_str()) {
                faults.push(format!("{name} uses {used}"));
            }
        }
        for used in dependencies(&manifest, "dev-dependencies") {
            if !allowed(MAY_USE, &name).contains(&used.as_str()) && !allowed(FOR_TESTS, &name).contains(&used.as_str())
            {
                faults.push(format!("tests of {name} use {used}"));
            }
        }
        found.insert(name);
    }
    for (name, _) in MAY_USE {
        if !found.contains(*name) {
            faults.push(format!("{name} is in the table and not in the workspace"));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// The table above, to compare with the one for readers.
#[test]
fn manifests_are_read() {
    let manifest = "[package]\nname = \"a\"\n[dependencies]\nplimsoll-graph.workspace = true\nhalf = \"2\"\n\
                    plimsoll-plan = { path = \"x\" }\n[dev-dependencies]\nplimsoll-cpu.workspace = true\n";
    let names = |table| dependencies(manifest, table).into_iter().collect::<Vec<_>>();
    assert_eq!(names("dependencies"), ["graph", "plan"]);
    assert_eq!(names("dev-dependencies"), ["cpu"]);
    let uses: BTreeMap<&str, usize> = MAY_USE.iter().map(|(name, uses)| (*name, uses.len())).collect();
    assert_eq!(uses.len(), MAY_USE.len(), "each crate once");
}
