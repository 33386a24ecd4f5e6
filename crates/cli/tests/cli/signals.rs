//! Interrupted and killed runs.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::support::{CHECKPOINT_FILES, World};

/// A run that would take minutes, seen to be past its second update.
fn under_way(world: &World, args: &[&str]) -> (Child, BufReader<std::process::ChildStderr>) {
    let long = ["train", "run.yaml", "--out", "out", "--steps", "1000000", "--set", "eval.every=1000000"];
    let mut child =
        world.command(&[&long, args].concat()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.trim_start().starts_with("2  ") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the run ended early");
    }
    (child, stderr)
}

#[test]
fn an_interrupted_run_saves_and_says_where() {
    let world = World::new();
    for (signal, out) in [("-INT", "one"), ("-TERM", "two"), ("-HUP", "three")] {
        let (mut child, stderr) = under_way(&world, &[]);
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let lines: Vec<String> = stderr.lines().map(Result::unwrap).collect();
        let answer = "stopping: finishing the update, then saving; press Ctrl-C again to leave now";
        assert_eq!(lines.iter().filter(|line| *line == answer).count(), 1, "{lines:?}");
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let step = world.losses("out").len();
        let folder = format!("out/checkpoints/step-{step}");
        let expected = [
            format!("error: interrupted after update {step} of 1000000; the state is saved in {folder}"),
            "hint: resume it with the same command and --out out".to_owned(),
        ];
        assert_eq!(lines[lines.len() - 2..], expected);
        assert_eq!(world.names(&folder), CHECKPOINT_FILES);
        assert!(!world.path("out/final").exists(), "an interrupted run has no final weights");
        assert!(world.text("out/log.txt").trim_end().ends_with(&expected.join("\n")));
        std::fs::rename(world.path("out"), world.path(out)).unwrap();
    }
    // What was saved is a model.
    let setting = format!("model=one/checkpoints/{}", world.names("one/checkpoints")[1]);
    world.run(&["train", "run.yaml", "--quiet", "--out", "again", "--steps", "1", "--set", &setting]).ok();
}

/// `nohup` has a run outlive its terminal. What a script has put into the background can be interrupted all the same.
#[test]
fn a_closed_terminal_stays_ignored_where_it_was() {
    let world = World::new();
    let program = world.command(&[]);
    let mut command = Command::new("sh");
    crate::support::isolate(&mut command, &world.path(""));
    let script = "trap '' HUP INT; exec \"$0\" train run.yaml --out out --steps 1000000";
    command.args(["-c", script]).arg(program.get_program()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut after = |step: &str| lines.by_ref().find(|line| line.trim_start().starts_with(step)).expect("goes on");
    after("2  ");
    let send = |signal: &str| Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(send("-HUP").success());
    after("40  ");
    assert!(send("-INT").success());
    let rest: Vec<String> = lines.collect();
    assert_eq!(rest.iter().filter(|line| line.starts_with("stopping: ")).count(), 1, "{rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// The second signal does not wait for the update, and what is in the folder goes on.
#[test]
fn a_second_ctrl_c_leaves_at_once() {
    let world = World::new();
    let (mut child, stderr) = under_way(&world, &["--set", "save.every=1"]);
    while !world.path("out/checkpoints/latest").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it goes on");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let interrupt = || Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupt().success());
    // Read to its end, so that nobody waits for a full pipe. By then the run may have come to its own end.
    for line in stderr.lines().map(Result::unwrap) {
        if line.starts_with("stopping: ") {
            interrupt();
        }
    }
    let ended = child.wait().unwrap();
    let by_signal = std::os::unix::process::ExitStatusExt::signal(&ended) == Some(2);
    assert!(by_signal || ended.code() == Some(130), "{ended}");
    let done = world.losses("out").len().to_string();
    let more = (done.parse::<u64>().unwrap() + 2).to_string();
    let args = ["train", "run.yaml", "--quiet", "--out", "out", "--steps", &more, "--set", "eval.every=1000000"];
    world.run(&[&args[..], &["--resume"]].concat()).ok();
    assert_eq!(world.losses("out").len().to_string(), more, "every step is there once");
}

#[test]
fn a_killed_run_leaves_only_whole_checkpoints() {
    let world = World::new();
    let (mut child, _stderr) = under_way(&world, &["--set", "save.every=1"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!world.path("out/final").exists());
    let whole = |name: &&String| name.strip_prefix("step-").is_some_and(|n| n.parse::<u64>().is_ok());
    let checkpoints = world.names("out/checkpoints");
    for name in checkpoints.iter().filter(whole) {
        assert_eq!(world.names(&format!("out/checkpoints/{name}")), CHECKPOINT_FILES);
        let setting = format!("model=out/checkpoints/{name}");
        let out = format!("from-{name}");
        world.run(&["train", "run.yaml", "--quiet", "--out", &out, "--steps", "1", "--set", &setting]).ok();
    }
    for rest in checkpoints.iter().filter(|name| !whole(name) && *name != "latest") {
        assert!(rest.ends_with(".partial"), "{rest}");
    }
}
