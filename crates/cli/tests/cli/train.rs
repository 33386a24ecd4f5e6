//! Short real runs.

use crate::support::World;

const QUIET: [&str; 3] = ["train", "run.yaml", "--quiet"];

fn train(world: &World, args: &[&str]) {
    world.run(&[&QUIET[..], args].concat()).ok();
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let world = World::new();
    train(&world, &["--out", "a"]);
    train(&world, &["--out", "b"]);
    train(&world, &["--out", "paranoid", "--paranoid"]);
    train(&world, &["--out", "other", "--seed", "43"]);
    let weights = |run: &str| world.read(&format!("{run}/final/model.safetensors"));
    for same in ["b", "paranoid"] {
        assert_eq!(world.losses("a"), world.losses(same), "{same}");
        assert!(weights("a") == weights(same), "{same}");
    }
    assert_ne!(world.losses("a"), world.losses("other"));
    assert!(weights("a") != world.read("model/model.safetensors"), "something was learnt");
}

#[test]
fn the_resolved_run_reproduces_the_run() {
    let world = World::new();
    train(&world, &["--out", "a", "--set", "optimizer.lr=3e-3", "--seed", "7"]);
    let again = ["train", "a/run.yaml", "--out", "b", "--quiet"];
    world.run(&again).ok();
    assert_eq!(world.losses("a"), world.losses("b"));
    assert!(world.read("a/final/model.safetensors") == world.read("b/final/model.safetensors"));
}

/// Paths of a run file are relative to it, wherever the command is run.
#[test]
fn a_run_file_brings_its_paths() {
    let world = World::new();
    let world_elsewhere = World::bare("");
    let file = world.path("run.yaml");
    let args =
        ["train", file.to_str().unwrap(), "--quiet", "--steps", "1", "--out", "here", "--set", "data.mode=cached"];
    world_elsewhere.run(&args).ok();
    assert_eq!(
        world_elsewhere.names("."),
        ["here", "run.yaml", "token-cache"],
        "--out is relative to the current folder"
    );
    let set = ["--set", "data.cache=cache", "--set", "model=model"];
    let said = world_elsewhere.run(&[&args[..3], &["--out", "set", "--set", "data.train=train.jsonl"]].concat());
    assert_eq!(said.code, Some(4), "so is --set: {}", said.stderr);
    world.edit("run.yaml", "data: {", "out: mine\ndata: {mode: cached, cache: tokens, ");
    world_elsewhere.run(&["train", file.to_str().unwrap(), "--quiet"]).ok();
    assert!(world.path("mine/final").is_dir() && world.names("tokens").len() == 1);
    world.run(&[&["train", "run.yaml", "--quiet", "--out", "flag"], &set[..]].concat()).ok();
    assert!(world.path("cache").is_dir());
}

#[test]
fn flag_over_environment_over_file() {
    let world = World::new();
    let mut command = world.command(&["train", "run.yaml", "--quiet", "--steps", "1", "--set", "seed=5"]);
    command.envs([("PLIMSOLL_SCHEDULE_STEPS", "3"), ("PLIMSOLL_OUT", "from-env"), ("PLIMSOLL_SEED", "9")]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(world.losses("from-env").len(), 1);
    let run = world.text("from-env/run.yaml");
    let out = format!("out: {}", world.path("from-env").canonicalize().unwrap().display());
    for (line, origin) in [("steps: 1", "--steps"), ("seed: 5", "--set"), (&out, "environment PLIMSOLL_OUT")] {
        let found = run.lines().find(|l| l.trim_start().starts_with(line)).unwrap_or_else(|| panic!("{line}: {run}"));
        assert!(found.ends_with(&format!("# {origin}")), "{found}");
    }
}

#[test]
fn pretraining_takes_texts() {
    let world = World::new();
    let texts: String = (0..40).map(|i| format!("{{\"text\": \"the ship carries {i} crates\"}}\n")).collect();
    world.write("train.jsonl", texts);
    train(&world, &["--out", "a", "--set", "task=pretrain"]);
    let steps = world.metrics("a");
    let step = steps.iter().find(|m| m.get("loss").is_some()).unwrap();
    assert_eq!(step["tokens"], 4 * 32, "sequences are cut to exactly max_length");
}

#[test]
fn frozen_weights_stay_as_they_were() {
    let world = World::new();
    train(&world, &["--out", "a", "--set", "method={freeze: [\"model.layers.0.*\"]}"]);
    let (before, after) = (world.read("model/model.safetensors"), world.read("a/final/model.safetensors"));
    let weight = |layer: u32| format!("model.layers.{layer}.self_attn.q_proj.weight");
    assert!(tensor(&before, &weight(0)) == tensor(&after, &weight(0)));
    assert!(tensor(&before, &weight(1)) != tensor(&after, &weight(1)));
}

/// The bytes of one tensor of a safetensors file.
fn tensor<'a>(file: &'a [u8], name: &str) -> &'a [u8] {
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let end = |index: usize| header[name]["data_offsets"][index].as_u64().unwrap() as usize;
    &data[end(0)..end(1)]
}

#[test]
fn training_lowers_the_loss_and_evaluation_sees_it() {
    let world = World::new();
    let said = world.run(&["train", "run.yaml", "--out", "a", "--json", "--steps", "40"]).ok();
    let result = said.json();
    let number = |key: &str| result[key].as_f64().unwrap_or_else(|| panic!("{key}: {result}"));
    assert!(number("loss_last") < number("loss_first") - 1.0, "{result}");
    assert!(number("eval_last") < number("eval_first") - 1.0, "{result}");
    assert_eq!(result["saved"], "a/final");
    assert!(result["host"]["planned_bytes"].as_u64().unwrap() > 0);
}

/// Between updates, training waits as long as a checkpoint is written.
#[test]
fn what_saving_took_is_reported() {
    let world = World::new();
    for way in ["between", "beside"] {
        let set = format!("plan.save={way}");
        let args =
            ["train", "run.yaml", "--out", way, "--json", "--steps", "6", "--set", "save.every=2", "--set", &set];
        let saving = world.run(&args).ok().json()["saving"].clone();
        let ms = |key: &str| saving[key].as_f64().unwrap();
        assert_eq!(saving["checkpoints"], 2, "{way}: the last update leaves the weights alone");
        assert!(ms("wrote_ms") > 0.0 && ms("waited_ms") > 0.0, "{way}: {saving}");
        assert!(way == "beside" || ms("waited_ms") >= ms("wrote_ms"), "{way}: {saving}");
    }
}

#[test]
fn wherever_the_data_is_kept_the_run_is_the_same() {
    let world = World::new();
    for mode in ["memory", "cached", "streaming"] {
        let set =
            format!("data={{train: train.jsonl, eval: train.jsonl, max_length: 32, mode: {mode}, shuffle: false}}");
        train(&world, &["--out", mode, "--set", &set]);
    }
    for mode in ["cached", "streaming"] {
        assert_eq!(world.losses("memory"), world.losses(mode), "{mode}");
        assert!(world.read("memory/final/model.safetensors") == world.read(&format!("{mode}/final/model.safetensors")));
    }
    // Training and evaluation read the same file, so there is one cache, and it is used again.
    let made = world.names("token-cache");
    assert_eq!(made.len(), 1, "{made:?}");
    train(&world, &["--out", "shuffled", "--set", "data.mode=cached"]);
    train(&world, &["--out", "plain", "--set", "data.mode=memory"]);
    assert_eq!(world.losses("shuffled"), world.losses("plain"));
    assert_eq!(world.names("token-cache"), made);
    // By epochs, a stream is counted first.
    let epochs = ["--set", "data.mode=streaming", "--set", "schedule={epochs: 2}"];
    train(&world, &[&["--out", "epochs"][..], &epochs].concat());
    train(&world, &["--out", "counted", "--set", "schedule={epochs: 2}"]);
    assert_eq!(world.losses("epochs").len(), world.losses("counted").len());
}

#[test]
fn a_share_of_the_rows_is_held_out() {
    let world = World::new();
    world.edit("run.yaml", "eval: train.jsonl", "eval_split: 0.25");
    for mode in ["memory", "cached", "streaming"] {
        train(&world, &["--out", mode, "--set", &format!("data.mode={mode}")]);
        let evals: Vec<_> = world.metrics(mode).into_iter().filter(|line| line.get("eval").is_some()).collect();
        let rows = world.text("train.jsonl").lines().count() as u64;
        assert_eq!(evals[0]["eval"]["sequences"], rows / 4, "{mode}");
    }
}

#[test]
fn runs_without_a_name_are_numbered() {
    let world = World::new();
    train(&world, &["--steps", "1"]);
    train(&world, &["--steps", "1"]);
    assert_eq!(world.names("runs"), ["run", "run-2"]);
}
