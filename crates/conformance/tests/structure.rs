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

/// The source files of a crate.
fn sources(name: &str) -> Vec<PathBuf> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for path in fs::read_dir(folder).expect("readable").filter_map(Result::ok).map(|entry| entry.path()) {
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&root().join("crates").join(name).join("src"), &mut found);
    found
}

/// What operators call themselves.
fn operator_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for path in sources("graph").iter().filter(|path| path.components().any(|part| part.as_os_str() == "ops")) {
        let text = fs::read_to_string(path).expect("UTF-8");
        let bodies = text.split("fn name(&self) -> &'static str {").skip(1);
        names.extend(
            bodies.filter_map(|body| body.trim_start().strip_prefix('"')?.split('"').next().map(str::to_owned)),
        );
    }
    names
}

/// Words that are an operator's name as well: the kind of work that attention is, and whose speed stands for that of plain
/// reading and writing where a card's figures say nothing of an operator.
const WORDS: [(&str, &str); 3] = [("time.rs", "attention"), ("rates.rs", "add"), ("device.rs", "add")];

/// What they need to know of an operator, it says itself. Tests may make graphs of real ones.
#[test]
fn plans_and_schedules_name_no_operator() {
    let names = operator_names();
    assert!(names.len() > 40 && names.contains("vocab_loss"), "{names:?}");
    let mut faults = Vec::new();
    for path in sources("plan").into_iter().chain(sources("runtime")) {
        let text = fs::read_to_string(&path).expect("UTF-8");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default().replace("std::ops::", "");
        let begins_a_word = |at: usize| !code[..at].ends_with(char::is_alphanumeric);
        if code.match_indices("ops::").any(|(at, _)| begins_a_word(at)) {
            faults.push(format!("{} uses operators", path.display()));
        }
        let is_word = |name: &str| WORDS.iter().any(|(file, word)| path.ends_with(file) && *word == name);
        let named = names.iter().filter(|name| code.contains(&format!("\"{name}\"")) && !is_word(name));
        faults.extend(named.map(|name| format!("{} names {name}", path.display())));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// Types that ARCHITECTURE.md speaks of are called so.
#[test]
fn the_page_names_what_there_is() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("UTF-8");
    let all: String = MAY_USE
        .iter()
        .flat_map(|(name, _)| sources(name))
        .map(|path| fs::read_to_string(path).expect("UTF-8"))
        .collect();
    let words: BTreeSet<&str> = all.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let is_type = |word: &&str| word.starts_with(char::is_uppercase) && word.chars().any(char::is_lowercase);
    let quoted = page.split('`').skip(1).step_by(2).flat_map(|code| code.split("::")).filter(is_type);
    let named: BTreeSet<&str> = quoted.filter(|word| word.chars().all(char::is_alphanumeric)).collect();
    assert!(named.len() > 10, "{named:?}");
    let missing: Vec<_> = named.difference(&words).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
