//! A disk that refuses: exit code 1, with the file, and nothing half-written.

use std::process::Command;

use crate::support::{Said, World, isolate};

#[test]
fn out_that_cannot_be_made() {
    let world = World::new();
    // Nobody, not even root, makes a folder inside a file.
    let said = world.run(&["train", "run.yaml", "--quiet", "--out", "train.jsonl/out"]);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert_eq!(
        said.stderr,
        "error: cannot write train.jsonl/out: Not a directory (os error 20)\n\
         hint: choose a writable folder with --out\n"
    );
}

/// Files may not grow beyond 64 KiB here: the weights do not fit, as on a full disk.
#[test]
fn disk_that_fills_up_while_saving() {
    let world = World::new();
    let mut command = Command::new("sh");
    isolate(&mut command, &world.path("."));
    let script = "trap '' XFSZ; ulimit -f 128; exec \"$0\" train run.yaml --quiet --out out";
    let said: Said = command.args(["-c", script, env!("CARGO_BIN_EXE_plimsoll")]).output().unwrap().into();
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    let expected = "error: cannot write out/final/model.safetensors: File too large (os error 27)\n\
        hint: free some space, or choose a folder on another disk with --out\n";
    assert_eq!(said.stderr, expected);
    assert_eq!(
        world.run_names("out"),
        [
            ".plimsoll-run",
            "events",
            "log.txt",
            "memory.json",
            "metrics.jsonl",
            "plan.html",
            "plan.json",
            "run.yaml",
            "state.json"
        ],
        "no half-written folder"
    );
    assert!(world.text("out/log.txt").ends_with(expected), "the log says why the run ended");
}

/// The same for tokenised data: what was written is gone, and another folder is the way out.
#[test]
fn disk_that_fills_up_while_tokenising() {
    let world = World::new();
    let rows: String = (0..5000).map(|i| format!("{{\"prompt\": \"{i} crates?\", \"response\": \"{i}\"}}\n")).collect();
    world.write("train.jsonl", rows);
    let mut command = Command::new("sh");
    isolate(&mut command, &world.path("."));
    let script = "trap '' XFSZ; ulimit -f 128; exec \"$0\" train run.yaml --quiet --out out --set data.mode=cached";
    let said: Said = command.args(["-c", script, env!("CARGO_BIN_EXE_plimsoll")]).output().unwrap().into();
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert!(said.stderr.starts_with("error: cannot write the tokenised data to token-cache/"), "{}", said.stderr);
    let hint = "File too large (os error 27)\nhint: free some space, or choose another folder for it\n";
    assert!(said.stderr.ends_with(hint), "{}", said.stderr);
    assert!(world.names("token-cache").is_empty(), "nothing half-written stays");
}
