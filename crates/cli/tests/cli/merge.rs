//! `plimsoll merge`.

use serde_json::Value as Json;

use crate::support::{Refusal, World, refused_in};

/// A run that has trained adapters beside `model`.
fn adapted() -> World {
    let world = World::new();
    let lora = "method={lora: {r: 4, alpha: 8, rslora: true}}";
    world.run(&["train", "run.yaml", "--quiet", "--out", "out", "--set", lora, "--set", "optimizer.lr=0.05"]).ok();
    world
}

fn loss(world: &World, model: &str) -> f64 {
    let said = world.run(&["eval", model, "--data", "train.jsonl", "--task", "sft", "--json", "--quiet"]).ok();
    said.json()["loss"].as_f64().expect("a loss")
}

#[test]
fn a_merged_model_is_a_model_of_its_own() {
    let world = adapted();
    let said = world.run(&["merge", "out", "--out", "merged", "--json", "--quiet"]).ok().json();
    assert_eq!((&said["folded"], &said["files"]), (&Json::from(14), &Json::from(1)));
    let host = |key: &str| said["host"][key].as_u64().expect("a size");
    assert!(host("used_bytes") <= host("planned_bytes"), "{said}");
    assert_eq!(world.json("merged/config.json"), world.json("model/config.json"));
    // By what the run itself has measured, and by what the base measures without adapters.
    let (trained, base, merged) = (loss(&world, "out/final"), loss(&world, "model"), loss(&world, "merged"));
    assert!((merged - trained).abs() < 1e-5 * trained, "{merged} instead of {trained}");
    assert!((merged - base).abs() > 1e-3, "the adapters do something: {merged} and {base}");
    // In several files, with the base named.
    let args = ["merge", "out/final", "--base", "model", "--out", "parts/merged", "--shard", "20KiB"];
    let said = world.run(&args).ok();
    assert!(said.stdout.contains("14 of") && said.stdout.contains("measured peak"), "{}", said.stdout);
    assert!(world.names("parts/merged").contains(&"model.safetensors.index.json".to_owned()));
    assert_eq!(loss(&world, "parts/merged"), merged);
}

#[test]
fn what_is_no_adapter_is_refused() {
    let world = World::new();
    let hint = "hint: name the folder with adapter_config.json, or the run that trained the adapter\n";
    refused_in(
        &world,
        &Refusal {
            args: &["merge", "model", "--out", "merged"],
            code: 2,
            expected: &format!("error: model is a model, not an adapter\n{hint}"),
        },
    );
    let world = adapted();
    refused_in(
        &world,
        &Refusal {
            args: &["merge", "out", "--out", "model"],
            code: 2,
            expected: "error: model is not empty\nhint: choose a new folder with --out\n",
        },
    );
    // The base has moved: it is found where the command says.
    std::fs::rename(world.path("model"), world.path("moved")).expect("writable");
    let said = world.run(&["merge", "out", "--out", "merged"]);
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    assert!(said.stderr.contains("--base"), "{}", said.stderr);
    world.run(&["merge", "out", "--base", "moved", "--out", "merged", "--quiet"]).ok();
    assert!(loss(&world, "merged").is_finite());
}

/// Adapters go on beside their own base only.
#[test]
fn a_run_does_not_go_on_beside_another_base() {
    let world = World::new();
    let args = ["train", "run.yaml", "--quiet", "--out", "out", "--set", "method=lora", "--set", "save.every=2"];
    world.run(&[&args[..], &["--steps", "3"]].concat()).ok();
    std::fs::remove_dir_all(world.path("out/final")).expect("there");
    let mut weights = world.read("model/model.safetensors");
    let at = weights.len() - 4;
    weights[at] ^= 1;
    world.write("model/model.safetensors", weights);
    let said = world.run(&[&args[..], &["--resume"]].concat());
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    assert!(said.stderr.contains("model.safetensors: it has other content"), "{}", said.stderr);
}
