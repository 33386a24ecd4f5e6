//! English and Chinese are level: whatever the sources say is in the catalogue, and nothing else is.

use std::collections::{BTreeSet, HashMap};

use plimsoll_speech::{Entry, Template, chinese};

use super::sources::Sources;
use crate::support::World;

/// Strings that look like sentences and are none, and files that have only such.
const UNSPOKEN: &str = include_str!("unspoken.txt");
const UNSPOKEN_FILE: &str = "crates/cli/tests/cli/language/unspoken.txt";

/// What the system says about files, by its numbers.
const SYSTEM_ERRORS: [i32; 14] = [2, 5, 12, 13, 17, 20, 21, 24, 27, 28, 30, 39, 98, 122];

/// What is no JSON, each in its way.
const NO_JSON: [&str; 17] = [
    "",
    "{",
    "[",
    "\"a",
    "x",
    "tru",
    "{\"a\" 1}",
    "{\"a\":1 2}",
    "[1 2]",
    "{1:2}",
    "1 2",
    "[1,]",
    "-",
    "\"\\q\"",
    "trx",
    "-x",
    "[1,\n,2]",
];

fn shape(text: &str) -> String {
    Template::parse(text).shape()
}

/// The file of the catalogue for what a source says.
fn file_for(place: &str) -> &'static str {
    let name = place.split('/').nth(1).unwrap_or_default();
    match name {
        "cli" if place.contains("/args") => "help.txt",
        "cli" => "cli.txt",
        "run" => "run.txt",
        "data" => "data.txt",
        "train" => "train.txt",
        "observe" => "observe.txt",
        _ => "device.txt",
    }
}

/// Lines of the list: files to be passed over, and strings.
fn unspoken() -> (Vec<&'static str>, Vec<&'static str>) {
    let lines = UNSPOKEN.lines().filter(|line| !line.is_empty() && !line.starts_with("# "));
    let (files, strings): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("crates/"));
    let bare = |text: &'static str| text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    (files, strings.into_iter().map(bare).collect())
}

/// The help of every key of a run file.
fn help_of_keys() -> Vec<String> {
    let keys = World::bare("").run(&["keys", "--json"]).ok().json();
    let help = |key: &serde_json::Value| key["help"].as_str().expect("a text").to_owned();
    keys.as_array().expect("a list").iter().map(help).collect()
}

#[test]
fn all_that_is_said_can_be_said_in_chinese() {
    let (files, unspoken) = unspoken();
    let sources = Sources::read(&files);
    let known: BTreeSet<String> = chinese().entries.iter().map(|entry| entry.english.shape()).collect();
    let unspoken: HashMap<String, &str> = unspoken.into_iter().map(|text| (shape(text), text)).collect();
    let mut faults = Vec::new();
    let mut met = BTreeSet::new();
    for said in &sources.sentences {
        let shape = shape(&said.text);
        if unspoken.contains_key(&shape) {
            met.insert(shape);
        } else if !known.contains(&shape) {
            let file = file_for(&said.place);
            faults.push(format!(
                "{}: not in Chinese yet: add it with its translation to crates/speech/zh/{file}, or, if nobody reads it, to \
                 {UNSPOKEN_FILE}:\n{}\n  …",
                said.place, said.text
            ));
        }
    }
    for help in help_of_keys().iter().filter(|help| !known.contains(&shape(help))) {
        faults.push(format!("help of a key, not in Chinese yet: add it to crates/speech/zh/keys.txt:\n{help}\n  …"));
    }
    let stale = unspoken.iter().filter(|(shape, _)| !met.contains(*shape));
    faults.extend(stale.map(|(_, text)| format!("{UNSPOKEN_FILE}: no source has it any more: {text}")));
    assert!(sources.sentences.len() > 1200, "the sources are where this test looks for them");
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn nothing_is_translated_that_nobody_says() {
    let sources = Sources::read(&unspoken().0);
    let mut said: BTreeSet<String> = sources.sentences.iter().map(|said| shape(&said.text)).collect();
    said.extend(help_of_keys().iter().map(|help| shape(help)));
    said.extend(SYSTEM_ERRORS.map(|code| shape(&std::io::Error::from_raw_os_error(code).to_string())));
    let words: BTreeSet<&str> = sources.all.iter().flat_map(|text| text.split('\n')).collect();
    let no_json = |text: &&str| serde_json::from_str::<serde_json::Value>(text).expect_err("no JSON").to_string();
    let of_others: Vec<String> = clap_lines().into_iter().chain(NO_JSON.iter().map(no_json)).collect();
    let is_known = |entry: &&Entry| {
        said.contains(&entry.english.shape())
            || entry.is_word && words.contains(entry.source.as_str())
            || of_others.iter().any(|line| made_by(&entry.english, line))
    };
    let stale: Vec<&str> =
        chinese().entries.iter().filter(|entry| !is_known(entry)).map(|entry| entry.source.as_str()).collect();
    assert!(stale.is_empty(), "crates/speech/zh: nobody says these any more; remove them:\n{}", stale.join("\n"));
}

/// Whether a line holds all of a template, in order.
fn made_by(template: &Template, line: &str) -> bool {
    let mut rest = line;
    template.literals.iter().all(|literal| {
        let found = rest.find(literal.as_str());
        rest = found.map_or("", |at| &rest[at + literal.len()..]);
        found.is_some()
    })
}

/// What clap says of its own, in English: help, and every mistake that can be made with a command line of ours.
fn clap_lines() -> Vec<String> {
    let world = World::bare("");
    let calls: [&[&str]; 26] = [
        &["--help"],
        &["help", "plan"],
        &["export", "--help"],
        &["export", "-h"],
        &["init", "--help"],
        &["tokenizer", "train", "--help"],
        &[],
        &["plan", "--budget", "1"],
        &["plan", "--gp"],
        &["plan", "--set", "a=1", "--s"],
        &["status", "--xyz"],
        &["trai"],
        &["st"],
        &["tokenizer"],
        &["tokenizer", "trian"],
        &["completions", "dos"],
        &["completions", "bas"],
        &["train", "--steps", "x"],
        &["train", "--steps", ""],
        &["train", "--steps", "99999999999999999999"],
        &["dashboard", "--port", "70000"],
        &["export", "run.yaml", "--to", "deepspeed", "--out", "x", "--gpus", "0"],
        &["export"],
        &["train", "--resume", "--fresh"],
        &["train", "--json=1"],
        &["train", "--gpu", "1GiB", "--gpu", "2GiB"],
    ];
    let lines = |args: &&[&str]| {
        let said = world.run(args);
        (said.stdout + &said.stderr).lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    calls.iter().flat_map(lines).chain(lines(&&["plan", "--gpu"][..])).collect()
}
