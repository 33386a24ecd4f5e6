//! Runs that go on, from the command line.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::Value as Json;

use crate::support::{Refusal, World, refused_in};

/// With a checkpoint after every second update, which is there before the next one. So many updates that even where this
/// process has to wait for the machine the run is killed long before its end.
const LONG: [&str; 8] = ["train", "run.yaml", "--steps", "60", "--set", "save.every=2", "--set", "plan.save=between"];

fn train<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&LONG, args].concat()
}

/// A world with an undisturbed run in `whole`.
fn world() -> World {
    let world = World::new();
    world.run(&train(&["--quiet", "--out", "whole"])).ok();
    world
}

/// Starts the run in `out` and kills it soon after its fifth update. Returns the update of its newest checkpoint.
fn killed(world: &World) -> u64 {
    let mut child =
        world.command(&train(&["--out", "out"])).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.trim_start().starts_with("5  ") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the run ended early");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let checkpoints = world.names("out/checkpoints");
    let steps = checkpoints.iter().filter_map(|name| name.strip_prefix("step-")?.parse().ok());
    let newest = steps.max().expect("four updates had one");
    assert!((4..60).contains(&newest), "killed after update {newest}");
    newest
}

/// What training decides, line by line.
fn history(world: &World, run: &str) -> Vec<String> {
    let of = |line: &Json| format!("{} {} {} {}", line["step"], line["loss"], line["grad_norm"], line["eval"]["loss"]);
    world.metrics(run).iter().map(of).collect()
}

#[track_caller]
fn assert_as_undisturbed(world: &World, run: &str) {
    assert_eq!(history(world, run), history(world, "whole"));
    assert!(world.read(&format!("{run}/final/model.safetensors")) == world.read("whole/final/model.safetensors"));
}

#[test]
fn the_same_command_goes_on_with_a_killed_run() {
    let world = world();
    let step = killed(&world);
    let said = world.run(&train(&["--out", "out"])).ok();
    let resuming = format!("\nresuming after update {step} from out/checkpoints/step-{step}\n");
    assert!(said.stderr.contains(&resuming), "{}", said.stderr);
    assert_as_undisturbed(&world, "out");
    assert!(world.text("out/log.txt").contains(&resuming), "the log goes on, too");
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_is_used() {
    let world = world();
    let newest = format!("out/checkpoints/step-{}/model.safetensors", killed(&world));
    let mut bytes = world.read(&newest);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    world.write(&newest, bytes);
    let said = world.run(&train(&["--quiet", "--out", "out"])).ok();
    let expected = format!("warning: {newest} cannot be used: its content does not match its checksum\n");
    assert_eq!(said.stderr, expected);
    assert_as_undisturbed(&world, "out");
}

#[test]
fn what_cannot_or_must_not_go_on_is_refused() {
    let world = world();
    let refuse = |args: &[&str], code: i32, expected: &str| {
        refused_in(&world, &Refusal { args: &train(&[&["--quiet"], args].concat()), code, expected });
    };
    let none = "error: --out: none has no checkpoint to resume from\nhint: start the run without --resume\n";
    refuse(&["--out", "none", "--resume"], 2, none);
    let finished = "error: --out: whole already holds a finished run\n\
        hint: choose another folder with --out, or train it for longer with more schedule.steps and --resume\n";
    refuse(&["--out", "whole"], 2, finished);
    let done = "error: --out: the run is finished: 60 updates of 60 are done\n\
        hint: raise schedule.steps or schedule.epochs to train it for longer\n";
    refuse(&["--out", "whole", "--resume"], 2, done);
    killed(&world);
    let fresh = "error: --out: out already holds a run\nhint: choose another folder with --out\n";
    refuse(&["--out", "out", "--fresh"], 2, fresh);
    let seed = "error: --seed: `seed` has changed from 42 to 1: the saved state does not fit\n\
        hint: go on with the value it had, or start a new run in another folder\n";
    refuse(&["--out", "out", "--seed", "1"], 2, seed);
    // Another rate is another run, unless the user insists.
    let said = world.run(&train(&["--quiet", "--out", "out", "--set", "optimizer.lr=2e-3"]));
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    let expected = "error: --out: out holds an unfinished run of another configuration: `schedule` has changed from ";
    assert!(said.stderr.starts_with(expected), "{}", said.stderr);
    let said = world.run(&train(&["--quiet", "--out", "out", "--set", "optimizer.lr=2e-3", "--resume"])).ok();
    assert!(said.stderr.starts_with("warning: `schedule` has changed from "), "{}", said.stderr);
    assert_eq!(history(&world, "out")[..6], history(&world, "whole")[..6]);
    assert_ne!(history(&world, "out"), history(&world, "whole"));
}

#[test]
fn two_processes_do_not_share_a_folder() {
    let world = World::new();
    let mut first = world
        .command(&["train", "run.yaml", "--out", "out", "--steps", "1000000"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(first.stderr.take().unwrap());
    let mut line = String::new();
    while !line.trim_start().starts_with("1  ") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the run ended early");
    }
    // A run whose lines nobody reads would soon wait for somebody who does.
    let reading = std::thread::spawn(move || stderr.lines().count());
    let said = world.run(&["train", "run.yaml", "--quiet", "--out", "out"]);
    assert_eq!(said.code, Some(2));
    let expected = format!("error: --out: out is in use by another run (process {})\n", first.id());
    assert!(said.stderr.starts_with(&expected), "{}", said.stderr);

    // It is seen from outside, and stopped from there.
    let status = |world: &World| world.run(&["status", "--json", "out"]).ok().json()[0].clone();
    let running = status(&world);
    assert_eq!((&running["state"], &running["steps"]), (&"running".into(), &1_000_000.into()));
    assert_eq!(running["pid"], first.id());
    world.run(&["stop", "out"]).ok();
    assert_eq!(first.wait().unwrap().code(), Some(130));
    assert!(reading.join().unwrap() > 0);
    let stopped = status(&world);
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(stopped["step"], world.losses("out").len());
    assert_eq!(world.run(&["stop", "out"]).code, Some(2), "nobody is left to be asked");
    assert!(world.run(&["status", "out"]).ok().stdout.contains("stopped"));
}

#[test]
fn runs_without_a_folder_take_new_names_and_the_last_one_can_be_resumed() {
    let world = World::new();
    let children: Vec<_> = (0..3)
        .map(|_| world.command(&["train", "run.yaml", "--quiet"]).stdout(Stdio::null()).spawn().unwrap())
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(world.names("runs"), ["run", "run-2", "run-3"]);
    for run in world.names("runs") {
        assert_eq!(world.losses(&format!("runs/{run}")).len(), 4);
    }
    let said = world.run(&["train", "run.yaml", "--quiet", "--resume"]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("there is no unfinished run named run in runs to resume"), "{}", said.stderr);
}

#[test]
fn the_best_is_named() {
    let world = World::new();
    let said = world.run(&["train", "run.yaml", "--json", "--quiet", "--out", "out", "--set", "save.best=loss"]).ok();
    let best = &said.json()["best"];
    let evals: Vec<Json> = world.metrics("out").into_iter().filter(|line| line.get("eval").is_some()).collect();
    let lowest = evals[1..].iter().map(|line| line["eval"]["loss"].as_f64().unwrap()).fold(f64::INFINITY, f64::min);
    assert_eq!(best["loss"].as_f64(), Some(lowest));
    let folder = best["folder"].as_str().unwrap();
    assert!(world.path(folder).join("model.safetensors").exists(), "{folder}");
}

/// Rows are known by what they hold, not by how many there are, wherever they are kept.
#[test]
fn other_data_is_refused_and_the_same_data_may_be_kept_elsewhere() {
    let world = world();
    let rows = world.text("train.jsonl");
    for (mode, then) in [("memory", "cached"), ("cached", "memory")] {
        killed(&world);
        let settings = ["--set", &format!("data.mode={mode}")];
        let quiet = train(&["--quiet", "--out", "out"]);
        world.write("train.jsonl", rows.replace("\"7 and 7?\"", "\"7 and 9?\""));
        let said = world.run(&[&quiet[..], &settings].concat());
        assert_eq!(said.code, Some(4), "{mode}: {}", said.stderr);
        assert!(said.stderr.starts_with("error: the data or its order is not what the run was"), "{}", said.stderr);
        world.write("train.jsonl", &rows);
        world.run(&[&quiet[..], &["--set", &format!("data.mode={then}")]].concat()).ok();
        assert_as_undisturbed(&world, "out");
        std::fs::remove_dir_all(world.path("out")).unwrap();
    }
    // A stream has another order.
    killed(&world);
    let streamed = train(&["--quiet", "--out", "out", "--set", "data.mode=streaming"]);
    assert_eq!(world.run(&streamed).code, Some(4));
}

/// What a template writes with the date in it stays what it was when the run began.
#[test]
fn a_date_in_the_template_is_that_of_the_beginning() {
    let world = World::new();
    let template = "Now {{ strftime_now('%s') }}{% for m in messages %}{{ m.content }}{% endfor %}";
    world.write("dated.jinja", template);
    let turn = |role: &str, content: String| serde_json::json!({"role": role, "content": content});
    let row =
        |i: usize| serde_json::json!({"messages": [turn("user", i.to_string()), turn("assistant", i.to_string())]});
    world.write("train.jsonl", (0..24).map(|i| format!("{}\n", row(i))).collect::<String>());
    world.write("model/chat_template.jinja", template);
    world.edit("run.yaml", "train: train.jsonl", "mode: memory, template: dated.jinja, train: train.jsonl");
    killed(&world);
    let began = std::time::Instant::now();
    while began.elapsed() < std::time::Duration::from_millis(1100) {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    world.run(&train(&["--quiet", "--out", "out"])).ok();
    let log = world.text("out/log.txt");
    let dates: Vec<&str> = log.split("Now ").skip(1).map(|rest| &rest[..10]).collect();
    assert_eq!(dates.len(), 2, "the first example is shown by both: {log}");
    assert!(dates[0] == dates[1] && dates[0].parse::<u64>().is_ok(), "{dates:?}");
}

/// Settings of a task decide what training does as any others do.
#[test]
fn other_settings_of_a_task_are_another_run() {
    let world = World::new();
    let row = |i: usize| serde_json::json!({"prompt": format!("{i}? "), "chosen": format!("{i}"), "rejected": "no"});
    world.write("train.jsonl", (0..24).map(|i| format!("{}\n", row(i))).collect::<String>());
    world.edit("run.yaml", "model: model", "model: model\ntask: dpo\nmethod: lora");
    killed(&world);
    let args = train(&["--quiet", "--out", "out", "--set", "dpo.beta=0.3"]);
    let said = world.run(&args);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("`task settings` has changed from") && said.stderr.contains("0.3"), "{}", said.stderr);
    let said = world.run(&[&args[..], &["--resume"]].concat()).ok();
    assert!(said.stderr.starts_with("warning: `task settings` has changed from"), "{}", said.stderr);
}
