//! Exit codes and messages of the program itself.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

fn plimsoll(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let inherited = std::env::vars_os().map(|(name, _)| name);
    for name in inherited.filter(|name| name.to_string_lossy().starts_with("PLIMSOLL_")) {
        command.env_remove(name);
    }
    command.current_dir(folder).args(args).output().unwrap()
}

/// A run file with `text`, and what the program says of it.
#[track_caller]
fn check(text: &str, args: &[&str], code: i32, expected: &str) {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("run.yaml"), text).unwrap();
    let output = plimsoll(folder.path(), args);
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
    assert_eq!(output.status.code(), Some(code));
    assert!(output.stdout.is_empty(), "errors go to stderr");
}

#[test]
fn unknown_key() {
    check(
        "model: qwen3-0.6b\nbatch: {sequence: 8}\n",
        &["plan", "run.yaml"],
        2,
        "error: run.yaml:2:9: unknown key `batch.sequence`\n\
         hint: did you mean `batch.sequences`?\n\
         hint: allowed under `batch`: sequences, tokens\n",
    );
}

#[test]
fn wrong_type() {
    check(
        "model: qwen3-0.6b\nseed: soon\n",
        &["train", "run.yaml"],
        2,
        "error: run.yaml:2:7: `seed` must be a whole number of at least 0, not `soon`\n",
    );
}

#[test]
fn missing_file() {
    check(
        "",
        &["bench", "absent.yaml"],
        2,
        "error: cannot read absent.yaml: No such file or directory (os error 2)\n\
         hint: `plimsoll init` writes a run file to start from\n",
    );
}

#[test]
fn budget_of_nothing() {
    let expected = |place: &str, key: &str| {
        format!(
            "error: {place}: `{key}` must be a size, a percentage or `auto`, not `0`\n\
             hint: a budget must be above 0; leave it out or write `auto` to use what is free\n"
        )
    };
    let file = "model: qwen3-0.6b\nmemory: {host: 0}\n";
    check(file, &["plan", "run.yaml"], 2, &expected("run.yaml:2:16", "memory.host"));
    let file = "model: qwen3-0.6b\n";
    check(file, &["plan", "run.yaml", "--gpu", "0"], 2, &expected("--gpu", "memory.gpu"));
}

#[test]
fn bad_usage() {
    let folder = TempDir::new().unwrap();
    for args in [&["plan", "--budget", "1"][..], &["fly"], &[], &["bench"], &["train", "--steps", "x"]] {
        let output = plimsoll(folder.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn help_is_a_result() {
    let folder = TempDir::new().unwrap();
    for args in [&["--help"][..], &["--version"], &["train", "--help"]] {
        let output = plimsoll(folder.path(), args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn init_writes_once() {
    let folder = TempDir::new().unwrap();
    let init = |args: &[&str]| plimsoll(folder.path(), &[&["init"], args].concat());
    assert_eq!(init(&["--preset", "low-memory"]).status.code(), Some(0));
    let first = std::fs::read_to_string(folder.path().join("run.yaml")).unwrap();
    assert!(first.contains("goal: lowest") && first.contains("model: qwen3-0.6b"));

    let again = init(&["--preset", "fastest"]);
    assert_eq!(again.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&again.stderr),
        "error: run.yaml exists already\nhint: name another file, or overwrite it with --force\n"
    );
    assert_eq!(std::fs::read_to_string(folder.path().join("run.yaml")).unwrap(), first);

    assert_eq!(init(&["--preset", "fastest", "--force"]).status.code(), Some(0));
    assert_ne!(std::fs::read_to_string(folder.path().join("run.yaml")).unwrap(), first);
    assert_eq!(init(&["absent/run.yaml"]).status.code(), Some(1));
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing half-written is left");
}
