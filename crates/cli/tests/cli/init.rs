//! `plimsoll init`: questions on a terminal, flags for scripts.

use crate::pty::Dialogue;
use crate::support::World;

/// A model and data, and no run file.
fn world() -> World {
    let world = World::new();
    std::fs::remove_file(world.path("run.yaml")).unwrap();
    world.write("cache/.keep", "");
    world
}

/// Plans are for a card whose figures do not depend on this machine, and no model is cached.
const ENVIRONMENT: [(&str, &str); 2] = [("PLIMSOLL_DEVICE", "RTX 4090"), ("HF_HUB_CACHE", "cache")];

/// Wrong answers are said and asked again; what is written plans as was shown.
#[test]
fn answers_become_a_run_file() {
    let world = world();
    let mut dialogue = Dialogue::begin(&world, &["init"], &ENVIRONMENT);
    dialogue.until("model").until("a folder here").until("hub id [model]: ").say("nowhere\n");
    dialogue.until("error: ").until("hub id [model]: ").say("7\n");
    dialogue.until("error: there is no model 7").until("hub id [model]: ").say("1\n");
    dialogue.until("train.jsonl").until("[1]: ").say("absent.jsonl\n");
    dialogue.until("error: ").until("[1]: ").say("\n");
    dialogue.until("train.jsonl: detected format: ").until("24 rows");
    dialogue.until("task: sft [sft]: ").say("poetry\n");
    dialogue.until("error: `poetry` is no task").until("task: sft [sft]: ").say("\n");
    dialogue.until("longest sequence in tokens [").say("0\n");
    dialogue.until("error: `0` is no length").until("longest sequence in tokens [").say("32\n");
    dialogue.until("sequences of an update [32]: ").say("4\n");
    dialogue.until("GPU memory budget [auto]: ").say("lots\n");
    dialogue.until("error: `lots` is no budget").until("GPU memory budget [auto]: ").say("64MiB\n");
    dialogue.until("host memory budget [auto]: ").say("16GiB\n");
    // Nothing fits: the figures are asked for again.
    dialogue.until("error: no method fits the budget on NVIDIA RTX 4090");
    dialogue.until("longest sequence in tokens [").say("32\n");
    dialogue.until("sequences of an update [4]: ").say("\n");
    dialogue.until("GPU memory budget [64MiB]: ").say("2GiB\n");
    dialogue.until("host memory budget [16GiB]: ").say("\n");
    dialogue.until("full, adamw with fp32 states").until("method [").say("lora, rank 8\n");
    dialogue.until("fastest").until("balanced").until("lowest").until("plan [1]: ").say("4\n");
    dialogue.until("error: there is no plan 4").until("plan [1]: ").say("3\n");
    dialogue.until("wrote run.yaml").until("next: `plimsoll train run.yaml`");
    assert_eq!(dialogue.end(), Some(0), "{}", dialogue.shown);

    let shown = dialogue.shown.replace("\r\n", "\n");
    crate::snapshots::compare("init.txt", &(crate::snapshots::normalised(&shown) + "\n"));
    let text = world.text("run.yaml");
    for part in ["goal: lowest", "gpu: 2GiB", "max_length: 32", "r: 8", "train: train.jsonl", "24 rows", "task: sft"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let args = ["plan", "run.yaml", "--json", "--quiet", "--device", "RTX 4090"];
    let planned = world.run(&args).ok().json();
    let size = plimsoll_run::bytes(planned["gpu"]["planned_bytes"].as_u64().unwrap());
    let shown = format!("lowest, {size} of GPU memory, micro-batches of {} tokens", planned["micro_batch_tokens"]);
    assert!(text.contains(&shown) && dialogue.shown.contains(&size), "{shown}: {text}");
    assert_eq!(planned["effective_batch"]["sequences"], 4);
}

/// Ctrl-D and Ctrl-C, at the first question and behind some.
#[test]
fn who_leaves_leaves_nothing_behind() {
    let world = world();
    let before = world.names(".");
    let begin = || Dialogue::begin(&world, &["init"], &ENVIRONMENT);
    let mut dialogue = begin();
    dialogue.until("hub id [model]: ").say("\x04");
    assert_eq!(dialogue.end(), Some(130), "{}", dialogue.shown);
    assert!(dialogue.shown.contains("error: no answer: nothing was written"), "{}", dialogue.shown);
    let mut dialogue = begin();
    dialogue.until("hub id [model]: ").say("\n").until("[1]: ").say("\n").until("[sft]: ").interrupt();
    assert_eq!(dialogue.end(), None, "{}", dialogue.shown);
    assert_eq!(world.names("."), before);
}

#[test]
fn flags_ask_nothing() {
    let world = world();
    let figures = ["--method", "lora-8", "--max-length", "32", "--sequences", "4", "--gpu", "2GiB", "--host", "16GiB"];
    let from = ["init", "--model", "model", "--data", "train.jsonl"];
    let said = world.run(&[&from[..], &figures].concat()).ok();
    assert!(
        said.stderr.contains("train.jsonl: detected format: ") && said.stderr.contains("24 rows"),
        "{}",
        said.stderr
    );
    let plan = |file: &str| world.run(&["plan", file, "--json", "--quiet", "--device", "RTX 4090"]).ok().json();
    let planned = plan("run.yaml");
    assert_eq!(
        (&planned["effective_batch"]["sequences"], &planned["gpu"]["budget_bytes"]),
        (&4.into(), &(2u64 << 30).into())
    );
    assert!(planned["host"]["categories"]["data"].as_u64().unwrap() > 0, "the data is found: {planned}");
    // A file elsewhere names the same data.
    world.write("elsewhere/.keep", "");
    world.run(&[&from[..], &figures, &["elsewhere/run.yaml"]].concat()).ok();
    assert_eq!(plan("elsewhere/run.yaml")["host"]["categories"]["data"], planned["host"]["categories"]["data"]);
    // Without a terminal nothing is asked, whatever is missing.
    world.run(&["init", "third.yaml"]).ok();
    assert!(world.text("third.yaml").contains("model: qwen3-0.6b"));
    let json = world.run(&[&from[..], &["--json", "fourth.yaml"]].concat()).ok().json();
    assert_eq!((&json["file"], &json["task"]), (&"fourth.yaml".into(), &"sft".into()));
}

#[test]
fn flags_that_are_wrong_write_nothing() {
    let world = world();
    let before = world.names(".");
    for (args, code) in [
        (["--gpu", "lots"], 2),
        (["--task", "poetry"], 2),
        (["--method", "lora-0"], 2),
        (["--max-length", "0"], 2),
        (["--data", "absent.jsonl"], 4),
    ] {
        let said = world.run(&[&["init"], &args[..]].concat());
        assert_eq!(said.code, Some(code), "{args:?}: {}", said.stderr);
        assert!(said.stderr.starts_with("error: "), "{}", said.stderr);
    }
    assert_eq!(world.names("."), before);
}
