//! What is depended on, as `deny.toml` allows it: licenses, one version of each crate, one source. The same as
//! `cargo deny check licenses bans sources`, without a tool that takes longer to build than all of this.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The texts of a list in `deny.toml`.
fn listed(deny: &str, section: &str, key: &str) -> BTreeSet<String> {
    let head = format!("[{section}]\n");
    let (_, section) = deny.split_once(&head).expect("the section is there");
    let section = section.split("\n[").next().unwrap_or_default();
    let (_, list) = section.split_once(&format!("{key} = [")).expect("the list is there");
    let list = list.split("\n]").next().unwrap_or_default();
    // On one line, or each on a line of its own with a remark.
    let lines = list.lines().map(|line| line.split(['#', ']']).next().unwrap_or_default());
    lines.flat_map(|line| line.split('"').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// The packages that are built here, without those of the workspace.
fn packages() -> Vec<Value> {
    let mut command = Command::new(env!("CARGO"));
    let args = ["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform"];
    let output = command.current_dir(ROOT).args(args).arg("x86_64-unknown-linux-gnu").output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let nodes = metadata["resolve"]["nodes"].as_array().expect("a graph");
    let built: BTreeSet<String> = nodes.iter().filter_map(|node| Some(node["id"].as_str()?.to_owned())).collect();
    let Value::Array(packages) = metadata["packages"].take() else { panic!("no packages") };
    let is_built = |package: &Value| package["id"].as_str().is_some_and(|id| built.contains(id));
    packages.into_iter().filter(|package| is_built(package) && !package["source"].is_null()).collect()
}

fn text<'a>(package: &'a Value, key: &str) -> &'a str {
    package[key].as_str().unwrap_or_default()
}

/// Whether an SPDX expression can be fulfilled. A slash is how `OR` used to be written.
fn allows(allowed: &BTreeSet<String>, expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (result, rest) = any_of(allowed, &words);
    result && rest.is_empty()
}

fn any_of<'a, 'w>(allowed: &BTreeSet<String>, words: &'a [&'w str]) -> (bool, &'a [&'w str]) {
    let (mut result, mut rest) = all_of(allowed, words);
    while let ["OR", more @ ..] = rest {
        let (other, behind) = all_of(allowed, more);
        (result, rest) = (result | other, behind);
    }
    (result, rest)
}

fn all_of<'a, 'w>(allowed: &BTreeSet<String>, words: &'a [&'w str]) -> (bool, &'a [&'w str]) {
    let (mut result, mut rest) = one(allowed, words);
    while let ["AND", more @ ..] = rest {
        let (other, behind) = one(allowed, more);
        (result, rest) = (result & other, behind);
    }
    (result, rest)
}

fn one<'a, 'w>(allowed: &BTreeSet<String>, words: &'a [&'w str]) -> (bool, &'a [&'w str]) {
    match words {
        ["(", inner @ ..] => match any_of(allowed, inner) {
            (result, [")", rest @ ..]) => (result, rest),
            (_, rest) => (false, rest),
        },
        [license, "WITH", exception, rest @ ..] => (allowed.contains(&format!("{license} WITH {exception}")), rest),
        [license, rest @ ..] => (allowed.contains(*license), rest),
        [] => (false, words),
    }
}

#[test]
fn expressions_of_licenses() {
    let allowed = BTreeSet::from(["MIT".to_owned(), "Zlib".to_owned()]);
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("MIT AND (GPL-3.0 OR Zlib)", true),
        ("(MIT OR GPL-3.0) AND GPL-2.0", false),
        ("GPL-3.0 OR MIT AND Zlib", true),
        ("MIT WITH Exception", false),
        ("", false),
        ("MIT Zlib", false),
    ] {
        assert_eq!(allows(&allowed, expression), expected, "{expression}");
    }
}

#[test]
fn dependencies_are_those_that_are_allowed() {
    let deny = std::fs::read_to_string(Path::new(ROOT).join("deny.toml")).expect("readable");
    let (licenses, skipped) = (listed(&deny, "licenses", "allow"), listed(&deny, "bans", "skip"));
    let banned = listed(&deny, "bans", "deny");
    assert!(licenses.contains("MIT") && skipped.contains("syn@2") && banned.contains("serde_yaml"), "the file is read");
    let packages = packages();
    assert!(packages.len() > 100, "the graph is read");
    let mut faults = Vec::new();
    let sources: BTreeSet<&str> = packages.iter().map(|package| text(package, "source")).collect();
    if sources.len() != 1 || !sources.iter().all(|source| source.starts_with("registry+")) {
        faults.push(format!("crates come from more than one registry: {sources:?}"));
    }
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut unused = skipped.clone();
    for package in &packages {
        let (name, version) = (text(package, "name"), text(package, "version"));
        if banned.contains(name) {
            faults.push(format!("{name} is banned"));
        }
        if !allows(&licenses, text(package, "license")) {
            faults.push(format!("{name} {version} has the license {:?}", text(package, "license")));
        }
        let known = skipped.iter().find(|skip| is_version(skip, name, version));
        match known {
            Some(known) => drop(unused.remove(known)),
            None => versions.entry(name).or_default().push(version),
        }
    }
    faults.extend(unused.iter().map(|skip| format!("nobody needs {skip} any more: take it off the list")));
    let several = versions.iter().filter(|(_, versions)| versions.len() > 1);
    faults.extend(several.map(|(name, versions)| format!("{name} is there in several versions: {versions:?}")));
    assert!(faults.is_empty(), "as deny.toml has it:\n{}", faults.join("\n"));
}

/// `syn@2` stands for every 2.x.
fn is_version(skip: &str, name: &str, version: &str) -> bool {
    skip.split_once('@').is_some_and(|(skipped, prefix)| {
        skipped == name && version.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}
