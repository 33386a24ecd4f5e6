//! `plimsoll plan --compare pytorch`.

use serde_json::Value as Json;

use crate::support::{Refusal, World, refused_in};

const RUN: &str = "model: smollm2-135m\nmethod: {lora: {r: 8, dropout: 0.1}}\ndata: {max_length: 512}\n\
    batch: {sequences: 8}\nmemory: {gpu: 6GiB, host: 16GiB}\ndevice: RTX 4090\n";

#[test]
fn a_plan_beside_transformers() {
    let world = World::bare(RUN);
    let report = world.run(&["plan", "run.yaml", "--compare", "pytorch", "--json"]).ok().json();
    let compare = &report["compare"];
    assert_eq!((&compare["with"], &compare["measured_on"]), (&Json::from("pytorch"), &Json::from("NVIDIA H200")));
    assert!(compare["runs"].as_u64().unwrap() >= 12);
    for what in ["allocated_bytes", "gpu_bytes", "tokens_per_s"] {
        let (mean, max) = (&compare["error"][what]["mean"], &compare["error"][what]["max"]);
        assert!(mean.as_f64().unwrap() > 0.0 && mean.as_f64() < max.as_f64(), "{compare}");
    }
    let rows = compare["rows"].as_array().unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["gpu_bytes"]), (&Json::from("this plan"), &report["gpu"]["planned_bytes"]));
    for row in rows {
        let categories = row["categories"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap());
        assert!(categories.sum::<u64>().abs_diff(row["gpu_bytes"].as_u64().unwrap()) < 16, "{row}");
    }
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {compare}"));
    let bytes = |name: &str| row(name)["gpu_bytes"].as_u64().unwrap();
    let speed = |name: &str| row(name)["tokens_per_s"].as_f64().unwrap();
    let (plain, again) = ("transformers + PEFT", "transformers + PEFT + checkpointing");
    assert!(bytes(plain) > bytes(again) && speed(plain) > speed(again), "{compare}");
    assert!(bytes("transformers + PEFT + Liger") < bytes(plain) && bytes(plain) > bytes("this plan"), "{compare}");
    // What does not fit stands beside the largest micro-batch that does.
    for row in rows.iter().filter(|row| row["fits"] == false) {
        assert!(row["why_not"].as_str().unwrap().ends_with("over the budget"), "{row}");
    }
    let other_card = "PyTorch's speed was measured on NVIDIA H200; here it is scaled by the rates of NVIDIA RTX 4090";
    assert!(compare["notes"].to_string().contains(other_card), "{compare}");
    assert!(world.run(&["plan", "run.yaml", "--json"]).ok().json().get("compare").is_none());
    let text = world.run(&["plan", "run.yaml", "--compare", "pytorch"]).ok().stdout;
    assert!(text.contains("context, allocator") && text.contains("predicted from the others within"), "{text}");
}

/// The whole model in sixteen bits, with no speed where none was measured.
#[test]
fn full_training_and_eight_bit_states() {
    let world = World::bare(&RUN.replace("{lora: {r: 8, dropout: 0.1}}", "full"));
    let ask = |set: &str| {
        let args = ["plan", "run.yaml", "--compare", "pytorch", "--json", "--gpu", "20GiB", "--set", set];
        world.run(&args).ok().json()["compare"].clone()
    };
    let optimizer = |compare: &Json| compare["rows"][1]["categories"]["optimizer"].as_u64().unwrap();
    let (sixteen, eight) = (ask("optimizer.state=bf16"), ask("optimizer.state=int8"));
    assert_eq!(sixteen["rows"][1]["name"], "transformers");
    assert!(sixteen["rows"][1]["tokens_per_s"].as_f64().unwrap() > 0.0, "{sixteen}");
    assert!(
        eight["rows"][1]["tokens_per_s"].is_null() && eight["notes"].to_string().contains("was not timed"),
        "{eight}"
    );
    assert!(optimizer(&eight) < optimizer(&sixteen) * 6 / 10);
}

#[test]
fn what_was_not_measured_is_not_compared() {
    let world = World::bare(RUN);
    let refuse = |set: &str, expected: &str| {
        let args = ["plan", "run.yaml", "--compare", "pytorch", "--set", set];
        refused_in(&world, &Refusal { args: &args, code: 2, expected });
    };
    refuse(
        "precision=fp32",
        "error: the comparison with PyTorch is one of sixteen-bit runs, but this one is in fp32\n\
         hint: remove `precision`, or set it to bf16\n",
    );
    refuse(
        "task=orpo",
        "error: there is no comparison with PyTorch for `task: orpo`\n\
         hint: there is one for sft, pretrain, seq2seq, reward, classification\n",
    );
    refuse(
        "device=cpu",
        "error: the comparison with PyTorch is one of GPUs, but the run is planned for the CPU\n\
         hint: name a GPU with --device, such as --device 'RTX 4090'; it need not be in this machine\n",
    );
}
