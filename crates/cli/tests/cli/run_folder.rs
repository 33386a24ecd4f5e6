//! What a run leaves behind.

use serde_json::Value as Json;

use crate::support::{CHECKPOINT_FILES, RUN, World};

const STEP_KEYS: [&str; 17] = [
    "step",
    "loss",
    "lr",
    "grad_norm",
    "tokens",
    "sequences",
    "tokens_per_s",
    "step_ms",
    "data_wait_ms",
    "forward_backward_ms",
    "update_ms",
    "fill_rate",
    "gpu_used_bytes",
    "host_rss_bytes",
    "host_available_bytes",
    "host_swapped_bytes",
    "major_faults",
];

fn trained(args: &[&str]) -> World {
    let world = World::new();
    world.run(&[&["train", "run.yaml", "--quiet", "--out", "out"], args].concat()).ok();
    world
}

/// With `log.wandb`, an offline run of W&B under the run's name; without, nothing of the kind.
#[test]
fn an_offline_run_is_written_where_it_is_asked_for() {
    let world = World::new();
    world.run(&["train", "run.yaml", "--out", "out", "--quiet"]).ok();
    assert!(world.names("out/wandb").is_empty());
    let set = ["--set", "log.wandb=true", "--set", "log.wandb_project=ships"];
    world.run(&[&["train", "run.yaml", "--out", "watched", "--quiet"], set.as_slice()].concat()).ok();
    let [folder] = world.names("watched/wandb").try_into().expect("one run");
    let id = folder.rsplit_once('-').unwrap().1;
    let file = world.read(&format!("watched/wandb/{folder}/run-{id}.wandb"));
    let has = |text: &str| file.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(file.starts_with(b":W&B"));
    assert!(["ships", "watched", "train/loss", "eval/loss"].into_iter().all(has));
}

#[test]
fn a_full_run_ends_as_a_hugging_face_folder() {
    let world = trained(&[]);
    assert_eq!(
        world.run_names("out"),
        [
            ".plimsoll-run",
            "events",
            "final",
            "log.txt",
            "memory.json",
            "metrics.jsonl",
            "plan.html",
            "plan.json",
            "run.yaml",
            "state.json"
        ]
    );
    let files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(world.names("out/final"), files);
    assert_eq!(world.read("out/final/tokenizer.json"), world.read("model/tokenizer.json"));
    let config = world.json("out/final/config.json");
    assert_eq!(config["model_type"], "llama");
    assert_eq!(config["architectures"][0], "LlamaForCausalLM");
    assert_eq!(config["torch_dtype"], "float32");
    // The folder is a model like any other.
    world.run(&["train", "run.yaml", "--quiet", "--out", "next", "--set", "model=out/final"]).ok();
}

/// Drawn weights are in no file: without them, adapters would be of no use.
#[test]
fn adapters_beside_drawn_weights_keep_their_base() {
    let drawn = "init=random";
    let world = trained(&["--set", "method={lora: {r: 4, alpha: 8}}", "--set", drawn]);
    let config = world.json("out/final/adapter_config.json");
    let base = config["base_model_name_or_path"].as_str().expect("a folder").to_owned();
    assert_eq!(std::path::Path::new(&base), world.path("out/base"));
    // The adapters give the same loss on the folder as they did on what was drawn.
    let evaluated =
        |args: &[&str]| world.run(&[&["eval"], args].concat()).ok().json()["loss"].as_f64().expect("a loss");
    let lines = world.text("out/metrics.jsonl");
    let last = lines.lines().rfind(|line| line.contains("\"eval\"")).expect("evaluated");
    let last: serde_json::Value = serde_json::from_str(last).expect("JSON");
    let (loss, expected) =
        (evaluated(&["out/final", "--data", "train.jsonl", "--json"]), last["eval"]["loss"].as_f64());
    assert!((loss - expected.expect("a loss")).abs() < 1e-4, "{loss} and {expected:?}");
    // Where files have the weights, they are not written again.
    let world = trained(&["--set", "method={lora: {r: 4, alpha: 8}}"]);
    assert!(!world.path("out/base").exists());
}

#[test]
fn a_lora_run_ends_as_a_peft_folder() {
    let world = trained(&["--set", "method={lora: {r: 4, alpha: 8, targets: [q_proj, v_proj]}}"]);
    let files = ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(world.names("out/final"), files);
    let config = world.json("out/final/adapter_config.json");
    assert_eq!(config["peft_type"], "LORA");
    assert_eq!(config["base_model_name_or_path"], "model");
    assert_eq!((config["r"].as_u64(), config["lora_alpha"].as_f64()), (Some(4), Some(8.0)));
    assert_eq!(config["target_modules"], serde_json::json!(["q_proj", "v_proj"]));
    assert!(world.read("out/final/adapter_model.safetensors").len() < world.read("model/model.safetensors").len());
}

#[test]
fn every_update_and_evaluation_is_measured() {
    let world = trained(&[]);
    let metrics = world.metrics("out");
    let (evals, steps): (Vec<&Json>, Vec<&Json>) = metrics.iter().partition(|line| line.get("eval").is_some());
    let of = |lines: &[&Json]| lines.iter().map(|l| l["step"].as_u64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of(&steps), [1, 2, 3, 4]);
    assert_eq!(of(&evals), [0, 2, 4]);
    for step in steps {
        for key in STEP_KEYS {
            assert!(step[key].is_number(), "{key}: {step}");
        }
        let ms = |key: &str| step[key].as_f64().unwrap();
        assert!(ms("forward_backward_ms") > 0.0 && ms("update_ms") > 0.0, "{step}");
        let phases = ms("data_wait_ms") + ms("forward_backward_ms") + ms("update_ms");
        assert!(phases <= ms("step_ms") + 1e-6, "parts of one time: {step}");
        assert_eq!(step["sequences"], 4);
        // Written and read back, a loss is the same 64 bits: more digits than a float32 has.
        assert!(step["loss"].to_string().len() > 12, "{step}");
    }
    for eval in evals {
        for key in ["loss", "tokens", "sequences", "ms"] {
            assert!(eval["eval"][key].is_number(), "{key}: {eval}");
        }
    }
}

#[test]
fn the_log_tells_the_run_as_the_terminal_does() {
    let world = World::new();
    let said = world.run(&["train", "run.yaml", "--out", "out"]).ok();
    let log = world.text("out/log.txt");
    assert_eq!(log, said.stderr + &said.stdout, "one formatter for both");
    for part in
        ["micro-batch  64 tokens", "activations", "budget", "step       loss", "evaluation, ", "saved out/final"]
    {
        assert!(log.contains(part), "{part}: {log}");
    }
    let updates = log.lines().filter(|l| l.split_whitespace().count() == 8 && l.contains("e-")).count();
    assert_eq!(updates, 4, "{log}");
    assert!(log.contains("measured peak"), "{log}");
}

#[test]
fn the_plan_of_the_run_is_kept() {
    let world = trained(&[]);
    let plan = world.json("out/plan.json");
    assert_eq!(plan["fits"], true);
    assert_eq!(plan["micro_batch_tokens"], 64);
}

/// For views from outside: what the plan holds at each moment of a schedule, and what the model answers at the end.
#[test]
fn memory_over_time_and_answers_are_kept() {
    let world = trained(&["--set", "eval.samples=2"]);
    let courses = world.json("out/memory.json");
    assert_eq!(courses[0]["name"], "micro-step");
    let course = courses[0]["categories"].as_object().unwrap();
    let at = |moment: usize| course.values().map(|bytes| bytes[moment].as_u64().unwrap()).sum::<u64>();
    let peak = (0..64).map(at).max().unwrap();
    let categories = world.json("out/plan.json")["host"]["categories"].clone();
    let of = |name: &str| categories[name].as_u64().unwrap();
    let arena: u64 = ["weights", "gradients", "optimizer", "activations", "loss", "cache", "inputs", "workspace"]
        .map(of)
        .iter()
        .sum();
    // A moment has the most of each category in it, which need not be at once; what lies between buffers is nobody's.
    assert!((0.95..1.25).contains(&(peak as f64 / arena as f64)), "{peak} of {arena}");
    assert_eq!(course["weights"][0], of("weights"), "weights stay");
    let samples = world.json("out/samples.json");
    assert_eq!(samples.as_array().unwrap().len(), 2);
    assert!(samples[0]["prompt"].as_str().unwrap().contains("and") && samples[0]["answer"].is_string());
    assert!(!trained(&[]).path("out/samples.json").exists());
}

#[test]
fn only_the_newest_checkpoints_are_kept() {
    let world = trained(&["--steps", "7", "--set", "save.every=2", "--set", "save.keep=2"]);
    assert_eq!(world.names("out/checkpoints"), ["latest", "step-4", "step-6"]);
    assert_eq!(world.names("out/checkpoints/latest"), CHECKPOINT_FILES);
    // How far the run had come in the data: six updates of four sequences.
    assert_eq!(world.json("out/checkpoints/latest/training.json")["cursor"]["groups"], 6 * 4);
    assert_eq!(world.json("out/checkpoints/step-4/training.json")["cursor"]["groups"], 4 * 4);
    assert_eq!(world.text("out/log.txt").matches("saved out/checkpoints/").count(), 3);
}

#[test]
fn the_best_checkpoint_outlives_newer_ones() {
    // With such a rate the loss only rises after the first update.
    let world = World::new();
    world.write(
        "run.yaml",
        RUN.replace("lr: 1e-3", "lr: 1.0, name: sgd").replace("steps: 4", "steps: 6, name: constant"),
    );
    let args = ["--set", "save={every: 1, keep: 1, best: loss}", "--set", "clip=none"];
    world.run(&[&["train", "run.yaml", "--quiet", "--out", "out"], &args[..]].concat()).ok();
    let evals: Vec<(f64, u64)> = (world.metrics("out").iter())
        .filter(|m| m.get("eval").is_some() && (1..6).contains(&m["step"].as_u64().unwrap()))
        .map(|m| (m["eval"]["loss"].as_f64().unwrap(), m["step"].as_u64().unwrap()))
        .collect();
    assert_eq!(evals.len(), 5, "a checkpoint is compared when it is made");
    let best = evals.iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1;
    let mut expected = vec!["best".to_owned(), "latest".to_owned(), format!("step-{best}"), "step-5".to_owned()];
    expected.dedup();
    assert_eq!(world.names("out/checkpoints"), expected);
}

/// Weights that run away end the run; what they were after the last good update is kept, and the error says which.
#[test]
fn a_run_that_diverges_keeps_the_last_good_state() {
    let world = World::new();
    let args =
        ["train", "run.yaml", "--out", "out", "--device", "cpu", "--set", "optimizer.lr=1e38", "--set", "clip=none"];
    let said = world.run(&args);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    let updates = world.losses("out").len();
    assert!(updates >= 1, "the first update is a good one");
    let last = said.stderr.lines().rev().find(|line| line.starts_with("error: ")).expect("an error");
    assert!(last.contains(&format!("the weights of step {updates} are untouched")), "{last}");
    assert_eq!(world.names("out/checkpoints"), ["latest".to_owned(), format!("step-{updates}")]);
    assert!(world.names(&format!("out/checkpoints/step-{updates}")).contains(&"model.safetensors".to_owned()));
}
