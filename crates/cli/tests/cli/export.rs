//! `plimsoll export`.

use crate::support::{Refusal, World, refused_in};

#[test]
fn a_model_becomes_one_file() {
    let world = World::new();
    let args = ["export", "model", "--to", "gguf", "--type", "q8_0", "--out", "model.gguf"];
    let said = world.run(&args).ok();
    assert_eq!(said.stdout, "model.gguf: 21 tensors, matrices in q8_0, 43.1 KiB\n");
    assert_eq!(world.read("model.gguf")[..4], *b"GGUF");
    refused_in(
        &world,
        &Refusal {
            args: &args,
            code: 2,
            expected: "error: model.gguf already exists\n\
                hint: choose another file with --out, or overwrite it with --force\n",
        },
    );
    let json = world.run(&["export", "model", "--to", "gguf", "--out", "model.gguf", "--force", "--json"]).ok().json();
    assert_eq!((&json["type"], &json["tensors"]), (&"f32".into(), &21.into()), "{json}");
    assert_eq!(json["bytes"].as_u64(), Some(world.read("model.gguf").len() as u64));
}

#[test]
fn a_run_of_adapters_is_added_to_its_base() {
    let world = World::new();
    world.run(&["train", "run.yaml", "--out", "adapted", "--set", "method=lora", "--quiet"]).ok();
    world.run(&["export", "adapted", "--to", "gguf", "--out", "adapted.gguf"]).ok();
    world.run(&["export", "model", "--to", "gguf", "--out", "base.gguf"]).ok();
    let (adapted, base) = (world.read("adapted.gguf"), world.read("base.gguf"));
    assert_eq!(adapted.len(), base.len(), "adapters have no place of their own");
    assert_ne!(adapted, base);
}

#[test]
fn what_the_format_cannot_hold_is_refused() {
    let world = World::new();
    world.edit("model/config.json", "\"silu\"", "\"gelu\"");
    refused_in(
        &world,
        &Refusal {
            args: &["export", "model", "--to", "gguf", "--out", "model.gguf"],
            code: 2,
            expected: "error: llama.cpp's architecture llama has the activation Silu, this model Gelu (layer 0)\n",
        },
    );
    assert!(!world.path("model.gguf").exists());
}

const LARGE: &str = "\
model: {family: llama, hidden_size: 2048, num_hidden_layers: 16, num_attention_heads: 16, num_key_value_heads: 16,
  intermediate_size: 5632, vocab_size: 32000, init: random}
data: {train: none.jsonl, max_length: 512}
batch: {sequences: 48}
optimizer: {lr: 3e-4, betas: [0.9, 0.95], weight_decay: 0.1}
clip: 0.5
device: RTX 4090
";

#[test]
fn deepspeed_gets_the_plan_s_figures() {
    let world = World::bare(LARGE);
    let export = |more: &[&str]| {
        let args = ["export", "run.yaml", "--to", "deepspeed", "--out", "ds.json", "--force", "--json"];
        let said = world.run(&[&args[..], more].concat()).ok().json();
        (said, world.json("ds.json"))
    };
    let (said, config) = export(&["--gpus", "3"]);
    let count = |key: &str| config[key].as_u64().expect(key);
    let (micro, accumulation) = (count("train_micro_batch_size_per_gpu"), count("gradient_accumulation_steps"));
    assert_eq!((count("train_batch_size"), 3 * micro * accumulation), (48, 48), "{config}");
    assert_eq!(said["micro_batch"].as_u64(), Some(micro));
    assert_eq!(config["gradient_clipping"], 0.5);
    assert_eq!(config["bf16"], serde_json::json!({"enabled": true}));
    assert_eq!(config["optimizer"]["params"]["betas"], serde_json::json!([0.9, 0.95]));
    assert_eq!((&config["zero_optimization"]["stage"], said["offloaded"].as_str()), (&2.into(), Some("nothing")));
    // Without the states it fits into half of that, without the weights into less.
    let (said, config) = export(&["--gpu", "7GiB"]);
    assert_eq!(config["zero_optimization"]["offload_optimizer"]["device"], "cpu", "{said}");
    assert_eq!(config["zero_optimization"]["stage"], 2);
    let (said, config) = export(&["--gpu", "3GiB"]);
    assert_eq!(config["zero_optimization"]["offload_param"]["device"], "cpu", "{said}");
    assert_eq!(config["zero_optimization"]["stage"], 3);
    let said =
        world.run(&["export", "run.yaml", "--to", "deepspeed", "--out", "x", "--gpus", "5", "--device", "RTX 4090"]);
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.contains("48 sequences per update cannot be divided among 5 GPUs"), "{}", said.stderr);
    assert_eq!(world.names("."), ["ds.json", "run.yaml"]);
}

#[test]
fn accelerate_gets_them_too() {
    let world = World::bare(LARGE);
    world.run(&["export", "run.yaml", "--to", "accelerate", "--out", "gpu.yaml", "--gpus", "2"]).ok();
    let text = world.text("gpu.yaml");
    for line in [
        "distributed_type: DEEPSPEED",
        "mixed_precision: bf16",
        "  gradient_clipping: 0.5",
        "  offload_optimizer_device: none",
        "  zero_stage: 2",
        "num_processes: 2",
        "use_cpu: false",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let world = World::new();
    world.run(&["export", "run.yaml", "--to", "accelerate", "--out", "cpu.yaml", "--device", "cpu"]).ok();
    let text = world.text("cpu.yaml");
    assert!(text.contains("distributed_type: 'NO'") && text.contains("use_cpu: true"), "{text}");
    refused_in(
        &world,
        &Refusal {
            args: &["export", "run.yaml", "--to", "deepspeed", "--out", "ds.json", "--device", "cpu"],
            code: 2,
            expected: "error: DeepSpeed trains on GPUs, but the run is planned for the CPU\n\
                hint: name one with --device, such as --device 'RTX 4090'; it need not be in this machine\n",
        },
    );
    refused_in(
        &world,
        &Refusal {
            args: &["export", "model", "--to", "gguf", "--out", "m.gguf", "--gpu", "1GiB"],
            code: 2,
            expected: "error: --gpu means nothing for --to gguf\nhint: remove --gpu\n",
        },
    );
}
