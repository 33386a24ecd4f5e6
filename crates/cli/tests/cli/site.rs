//! The documentation site (`book.toml`): links, run files and outputs on its pages are what they claim to be.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_run::config::{Overrides, load_run, reference};

use crate::page::{Block, anchors, blocks, docs, prose, read, targets};
use crate::support::{World, isolate};

const SUMMARY: &str = "SUMMARY.md";

/// Every page of the site but the table of contents.
fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(docs()).expect("readable").filter_map(Result::ok).map(|entry| entry.path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|end| end == "md") && !path.ends_with(SUMMARY);
    let mut pages: Vec<PathBuf> = entries.filter(is_page).collect();
    pages.sort();
    assert!(pages.len() > 12, "the pages are where this test looks for them");
    pages
}

fn name(page: &Path) -> String {
    page.file_name().expect("a file").to_string_lossy().into_owned()
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let listed = targets(&read(&docs().join(SUMMARY)));
    let unique: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "a page stands there twice");
    let there: Vec<String> = pages().iter().map(|page| name(page)).collect();
    assert_eq!(unique.into_iter().cloned().collect::<Vec<_>>(), there);
}

/// What is wrong with a link on a page; `root` is what it may not leave.
fn fault(page: &Path, target: &str, root: &Path) -> Option<String> {
    if target.starts_with("https://") || target.starts_with("http://") {
        return None;
    }
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let path = if file.is_empty() { page.to_owned() } else { page.parent().expect("a folder").join(file) };
    let Ok(path) = path.canonicalize() else { return Some(format!("{target} is not there")) };
    if !path.starts_with(root) {
        return Some(format!("{target} is not a part of the site"));
    }
    match heading {
        Some(heading) if !anchors(&read(&path)).contains(heading) => Some(format!("{target}: no such heading")),
        _ => None,
    }
}

#[test]
fn every_link_leads_somewhere() {
    let site = docs();
    let root = site.parent().expect("the repository").to_owned();
    let mut checked: Vec<(PathBuf, &Path)> = pages().into_iter().map(|page| (page, site.as_path())).collect();
    checked.push((site.join(SUMMARY), &site));
    checked.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
            .map(|name| (root.join(name), root.as_path())),
    );
    let mut faults = Vec::new();
    let mut links = 0;
    for (page, root) in &checked {
        for target in targets(&read(page)) {
            links += 1;
            faults.extend(fault(page, &target, root).map(|fault| format!("{}: {fault}", name(page))));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    assert!(links > 50, "links are found");
}

/// A block of kind `yaml` is a run file of ours, read as the program reads one.
#[test]
fn every_run_file_loads() {
    let mut loaded = 0;
    for page in pages() {
        for Block { lines, .. } in blocks(&read(&page)).into_iter().filter(|block| block.kind == "yaml") {
            let world = World::bare(&lines.join("\n"));
            let read = load_run(Some(&world.path("run.yaml")), &Overrides::default());
            assert!(read.is_ok(), "{}: {}\n{}", name(&page), read.unwrap_err(), lines.join("\n"));
            loaded += 1;
        }
    }
    assert!(loaded > 10, "{loaded} run files");
}

/// Top-level keys of a block of YAML, or names of arguments in Python.
fn keys_of<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let key = |line: &&'a str| {
        let (name, _) = line.split_once([':', '='])?;
        is_name(name.trim()).then_some(name.trim())
    };
    lines.iter().filter_map(key).collect()
}

/// A block of kind `yaml NAME` is a configuration of another trainer: whoever puts its keys into a run file is told what to
/// use instead.
#[test]
fn keys_of_other_trainers_are_answered() {
    let mut answered = BTreeSet::new();
    for page in pages() {
        let foreign = |block: &Block<'_>| block.kind.starts_with("yaml ");
        for Block { lines, .. } in blocks(&read(&page)).into_iter().filter(foreign) {
            for key in keys_of(&lines) {
                if reference(Some(key)).is_ok() || !answered.insert(key.to_owned()) {
                    continue;
                }
                let world = World::bare(&format!("{key}: 1\n"));
                let failure =
                    load_run(Some(&world.path("run.yaml")), &Overrides::default()).expect_err("no key of ours");
                let first = failure.hints.first().cloned().unwrap_or_default();
                assert!(
                    !first.is_empty() && !first.starts_with("allowed "),
                    "{}: nothing is said of `{key}`",
                    name(&page)
                );
            }
        }
    }
    assert!(answered.len() > 20, "{answered:?}");
}

/// In the tables of the pages for those who come from elsewhere, what stands on our side exists.
#[test]
fn keys_in_tables_exist() {
    let mut found = 0;
    for page in pages().into_iter().filter(|page| name(page).starts_with("from-")) {
        for line in prose(&read(&page)).lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
            let ours = cells.get(1).copied().unwrap_or_default();
            for word in ours.split('`').skip(1).step_by(2) {
                check_ours(word, &name(&page));
                found += 1;
            }
        }
    }
    assert!(found > 80, "{found} keys");
}

/// A key, a line of a run file, or a command with its flags.
fn check_ours(word: &str, page: &str) {
    if let Some(command) = word.strip_prefix("plimsoll ") {
        let command = command.split_whitespace().next().unwrap_or_default();
        World::bare("").run(&["help", command]).ok();
    } else if word.contains(": ") {
        let model = if word.starts_with("model:") { "" } else { "model: tiny\n" };
        let world = World::bare(&format!("{model}{word}\n"));
        let read = load_run(Some(&world.path("run.yaml")), &Overrides::default());
        assert!(read.is_ok(), "{page}: `{word}`: {}", read.unwrap_err());
    } else if !word.starts_with('-') {
        assert!(reference(Some(word)).is_ok(), "{page}: `{word}` is no key");
    }
}

/// Sizes and rates in blocks of text behind commands are the planner's. `PLIMSOLL_WRITE_DOCS=1` writes them anew where a
/// change is meant.
#[test]
fn plans_on_pages_are_those_that_are_made() {
    for (page, least) in [("which-plan.md", 5), ("five-runs.md", 1)] {
        let path = docs().join(page);
        let written = fs::read_to_string(&path).unwrap();
        let (made, outputs) = run_commands(&written);
        assert!(outputs >= least, "{page}: {outputs} outputs");
        if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
            fs::write(&path, &made).unwrap();
            continue;
        }
        for (written, now) in written.lines().zip(made.lines()) {
            assert_eq!(written, now, "{page}: after a change that is meant, PLIMSOLL_WRITE_DOCS=1 writes it anew");
        }
        assert_eq!(written.len(), made.len(), "{page}");
    }
}

/// A page with what its commands print now in each block of text behind one of commands, and how many there are.
fn run_commands(page: &str) -> (String, usize) {
    let world = World::bare("");
    std::os::unix::fs::symlink(docs().join("../examples"), world.path("examples")).unwrap();
    let (mut made, mut outputs) = (String::new(), 0);
    let mut said: Option<String> = None;
    let mut open: Option<(&str, Vec<&str>)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(kind), None) => open = Some((kind, Vec::new())),
            (Some(_), Some((kind, lines))) => match (kind, said.take()) {
                ("sh", _) => said = Some(lines.iter().map(|command| shell(&world, command)).collect()),
                ("yaml", _) => {
                    let name = lines[0].strip_prefix("# ").expect("its first line names the file");
                    world.write(name, lines.join("\n"));
                }
                ("text", Some(output)) => {
                    outputs += 1;
                    made += &output;
                }
                _ => {}
            },
            (None, Some((kind, mut lines))) => {
                lines.push(line);
                open = Some((kind, lines));
                // What a command prints comes from the command.
                if kind == "text" && said.is_some() {
                    continue;
                }
            }
            (None, None) => {}
        }
        made += line;
        made.push('\n');
    }
    (made, outputs)
}

fn shell(world: &World, command: &str) -> String {
    let mut shell = Command::new("sh");
    isolate(&mut shell, &world.path("."));
    let program = Path::new(env!("CARGO_BIN_EXE_plimsoll")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let output = shell.env("PATH", path).args(["-c", &format!("exec 2>&1\n{command}")]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Every source of the program as one text, with strings that go over several lines joined.
fn sources() -> String {
    fn collect(folder: &Path, text: &mut String) {
        for path in fs::read_dir(folder).unwrap().filter_map(Result::ok).map(|entry| entry.path()) {
            if path.is_dir() {
                collect(&path, text);
            } else if path.extension().is_some_and(|end| end == "rs") {
                *text += &fs::read_to_string(&path).unwrap();
            }
        }
    }
    let mut text = String::new();
    let crates = docs().join("../crates");
    for entry in fs::read_dir(crates).unwrap().filter_map(Result::ok) {
        collect(&entry.path().join("src"), &mut text);
    }
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    lines.join("\n").replace("\\\n", "")
}

/// First cells of tables whose head begins with `head`, without their backticks.
fn first_cells<'a>(page: &'a str, head: &str) -> Vec<&'a str> {
    let mut cells = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        is_inside = line.starts_with(head) || is_inside && line.starts_with('|');
        let cell = line.strip_prefix("| `").and_then(|rest| rest.split_once("` |")).map(|(cell, _)| cell);
        cells.extend(cell.filter(|_| is_inside));
    }
    cells
}

/// The parts between placeholders of a message stand in the sources as they stand on the page.
#[test]
fn messages_that_are_explained_exist() {
    let sources = sources();
    let page = read(&docs().join("troubleshooting.md"));
    let messages = first_cells(&page, "| message |");
    assert!(messages.len() > 25, "{}", messages.len());
    for message in messages {
        for part in message.split('…').map(str::trim).filter(|part| part.len() > 2) {
            assert!(sources.contains(part), "`{message}`: no message has `{part}`");
        }
    }
}

/// The recordings that the doctor is tested with have every finding.
#[test]
fn every_finding_of_the_doctor_is_explained() {
    let page = read(&docs().join("troubleshooting.md"));
    let explained: BTreeSet<&str> = first_cells(&page, "| finding |").into_iter().collect();
    let recordings = docs().join("../crates/observe/tests/doctor");
    let mut found = BTreeSet::new();
    for recording in fs::read_dir(recordings).unwrap().filter_map(Result::ok).map(|entry| entry.path()) {
        if recording.extension().is_some_and(|end| end == "json") {
            let situation: serde_json::Value = serde_json::from_slice(&fs::read(&recording).unwrap()).unwrap();
            found.extend(situation["must"].as_object().unwrap().keys().cloned());
        }
    }
    assert_eq!(explained.into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), found);
}
