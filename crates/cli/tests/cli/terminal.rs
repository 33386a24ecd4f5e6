//! What stands on a terminal, and what becomes of results that cannot be written.

use std::fs::File;
use std::process::Stdio;
use std::time::Instant;

use crate::pty::{lines, on_terminal};
use crate::support::{Said, World};

#[test]
fn everything_fits_into_eighty_columns() {
    let card = "model: smollm2-135m\nmethod: {lora: {r: 8}}\nbatch: {sequences: 8}\n";
    for (text, args) in [
        (card, &["plan", "run.yaml", "--device", "RTX 4090"][..]),
        (card, &["plan", "run.yaml", "--device", "RTX 4090", "--gpu", "512MiB"]),
        (card, &["plan", "run.yaml", "--device", "RTX 4090", "--gpu", "1500MiB", "--goal", "lowest", "--origins"]),
        (card, &["keys"]),
        ("model: tiny\nbatch: {sequence: 1}\n", &["plan", "run.yaml"]),
        ("model: tiny\nper_device_train_batch_size: 1\n", &["plan", "run.yaml"]),
    ] {
        let said = on_terminal(&World::bare(text), 80, args);
        let said = lines(&said);
        assert!(!said.is_empty());
        for line in said {
            assert!(line.chars().count() <= 80, "{args:?}: {line}");
        }
    }
}

#[test]
fn a_run_on_a_terminal() {
    let world = World::new();
    let row = "{\"prompt\": \"clear\\n\\u001b[2Jscreen\", \"response\": \"\\u0007ok\"}\n";
    world.write("train.jsonl", row.repeat(24));
    let args = ["train", "run.yaml", "--device", "cpu", "--out", "out", "--steps", "60", "--set", "eval.samples=2"];
    let began = Instant::now();
    let said = on_terminal(&world, 80, &args);
    let seconds = began.elapsed().as_secs() as usize;
    assert!(!said.contains("\x1b[2J") && !said.contains('\u{7}'), "data is shown, not obeyed: {said:?}");
    assert!(said.contains("clear↵\u{FFFD}[2Jscreen"), "{said}");
    assert!(said.contains("60/60"), "a bar: {said:?}");
    let lines = lines(&said);
    let is_update = |line: &&&str| line.contains("e-") && line.split_whitespace().count() == 8;
    let updates = lines.iter().filter(is_update).count();
    // With the first, the last and those on either side of a second.
    assert!((1..=seconds + 4).contains(&updates), "about one line a second, in {seconds} s: {said}");
    assert_eq!(world.losses("out").len(), 60, "the file has every update");
    let log = world.text("out/log.txt");
    assert!(log.lines().filter(|line| is_update(&line)).count() >= 58, "{log}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{said}");
    // The plan stands there before anything is trained.
    let at = |part: &str| said.find(part).unwrap_or_else(|| panic!("{part}: {said}"));
    assert!(at("micro-batch") < at("host memory") && at("host memory") < at("first example"));
}

#[test]
fn lines_at_the_pace_that_is_asked_for() {
    let world = World::new();
    let said = world.run(&["train", "run.yaml", "--out", "out", "--steps", "8", "--set", "log.every=3"]).ok();
    let step =
        |line: &str| (line.split_whitespace().count() == 8).then(|| line.split_whitespace().next()?.parse().ok());
    let steps: Vec<u64> = said.stderr.lines().filter_map(step).flatten().collect();
    assert_eq!(steps, [1, 3, 6, 8]);
    assert_eq!(world.losses("out").len(), 8);
}

/// Nothing is broken or cut where a program reads.
#[test]
fn a_pipe_gets_whole_lines() {
    let said = World::bare("").run(&["keys"]).ok();
    assert!(said.stdout.lines().any(|line| line.chars().count() > 150), "{}", said.stdout);
}

#[test]
fn results_that_cannot_be_written() {
    let world = World::bare("model: smollm2-135m\n");
    for args in
        [&["plan", "run.yaml", "--device", "H200"][..], &["keys", "--json"], &["--help"], &["completions", "bash"]]
    {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let said: Said = world.command(args).stdout(full).output().unwrap().into();
        assert_eq!(said.code, Some(1), "{args:?}: {}", said.stderr);
        assert_eq!(
            said.stderr,
            "error: cannot write to stdout: No space left on device (os error 28)\n\
             hint: the result is incomplete; free some space, or write it elsewhere\n"
        );
    }
}

/// As in `plimsoll keys | head -1`.
#[test]
fn a_closed_pipe_is_no_error() {
    let world = World::bare("");
    let mut child = world.command(&["keys"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let said: Said = child.wait_with_output().unwrap().into();
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
}
