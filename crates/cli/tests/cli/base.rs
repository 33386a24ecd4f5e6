//! Adapters beside a base in few bits.

use serde_json::Value as Json;

use crate::support::World;

const FORMATS: [&str; 3] = ["nf4", "int8", "fp8"];
const LORA: &str = "method={lora: {r: 4, alpha: 8}}";
const MISTRAL: &str = "\
model: mistral-7b
method: {lora: {r: 16, alpha: 32}}
data: {max_length: 2048}
batch: {sequences: 4}
memory: {host: 16GiB}
";

#[test]
fn auto_takes_as_many_bits_as_fit_and_says_why() {
    let world = World::bare(MISTRAL);
    for (card, gpu, expected) in [
        ("RTX 4090", "100%", "base: auto takes bf16, which fits\n"),
        // Products of codes are only there on Hopper.
        ("RTX 3060", "100%", "base: auto takes int8: bf16 needs 15."),
        ("H200", "11GiB", "base: auto takes fp8: bf16 needs 15."),
        ("RTX 3060", "7GiB", "base: auto takes nf4: bf16 needs 15."),
    ] {
        let said = world.run(&["plan", "run.yaml", "--device", card, "--gpu", gpu, "--base", "auto"]).ok();
        assert!(said.stderr.contains(expected), "{card}: {}", said.stderr);
    }
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 3060", "--gpu", "7GiB", "--base", "auto"]).ok();
    assert!(
        said.stderr.contains(", int8 needs 8.") && said.stderr.contains("the budget is 7.00 GiB"),
        "{}",
        said.stderr
    );
    // Where nothing fits, the refusal is about the fewest bits.
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 3060", "--gpu", "4GiB", "--base", "auto"]);
    assert_eq!(said.code, Some(3));
    assert!(said.stderr.contains("the smallest plan needs 5."), "{}", said.stderr);
}

#[test]
fn what_does_not_fit_is_told_what_fewer_bits_save() {
    let world = World::bare(MISTRAL);
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 3060"]);
    assert_eq!(said.code, Some(3));
    let hint = |start: &str| said.stderr.lines().any(|line| line.starts_with(&format!("hint: {start}")));
    assert!(hint("base: nf4 needs 5.") && hint("base: int8 needs 8."), "{}", said.stderr);
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 3060", "--set", "method=full"]);
    assert!(said.stderr.contains("hint: method: lora with base: nf4 needs 5."), "{}", said.stderr);
    // With the fewest bits already, there is none left to name.
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 3060", "--base", "nf4", "--gpu", "4GiB"]);
    assert!(!said.stderr.contains("base:"), "{}", said.stderr);
}

#[test]
fn methods_are_compared_with_formats() {
    let world = World::bare(MISTRAL);
    let args = ["plan", "run.yaml", "--device", "RTX 4090", "--alternatives", "methods", "--json"];
    let json = world.run(&args).ok().json();
    let row = |name: &str| {
        let rows = json["alternatives"].as_array().expect("rows");
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {json}"))
    };
    let bytes = |row: &Json| row["gpu_bytes"].as_u64().expect("a size");
    for format in FORMATS {
        assert_eq!(row(&format!("lora, rank 16, base {format}"))["fits"], true);
    }
    assert_eq!(row("lora, rank 16")["chosen"], true);
    assert!(bytes(row("lora, rank 16, base nf4")) <= 24 << 30);
}

#[test]
fn formats_that_mean_nothing_for_a_run_are_refused() {
    let world = World::new();
    let check = |set: &[&str], expected: &str| {
        let set: Vec<&str> = set.iter().flat_map(|set| ["--set", set]).collect();
        let args: Vec<&str> = ["train", "run.yaml", "--quiet", "--device", "cpu"].into_iter().chain(set).collect();
        let said = world.run(&args);
        assert_eq!(said.code, Some(2), "{}", said.stderr);
        assert_eq!(said.stderr, expected);
    };
    check(
        &["base=nf4"],
        "error: --set base: `base: nf4` is how frozen weights are stored, but `method: full` freezes none\n\
         hint: train adapters, as in method: {lora: {r: 16}}\nhint: or remove `base`\n",
    );
    check(
        &["base=int8", "method={freeze: [\"*.0.*\"]}"],
        "error: --set base: `base: int8` is for adapters: a model that is trained in parts is saved whole, in the precision of \
         the run\nhint: train adapters, as in method: {lora: {r: 16}}\nhint: or remove `base`\n",
    );
    check(
        &["base=bf16", LORA],
        "error: --set base: `base` is bf16, but the precision of the run is fp32\n\
         hint: remove `base`, or set it to fp8, int8, nf4 or auto\n",
    );
    // A folder that is quantised already has its format, and cannot be trained itself.
    let config = world.text("model/config.json");
    let quantized = |quantization: &str| {
        world.write(
            "model/config.json",
            config.replacen('{', &format!("{{\"quantization_config\": {quantization},"), 1),
        );
    };
    quantized(r#"{"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"}"#);
    check(
        &[],
        "error: the weights of the model are stored in nf4 and cannot be trained themselves\n\
         hint: train adapters, as in method: {lora: {r: 16}}\n\
         hint: or set `model` to the folder of the model that they were made from\n",
    );
    check(
        &["base=int8", LORA],
        "error: --set base: `base` is int8, but the weights of model are stored in nf4\n\
         hint: remove `base`, or set `model` to the folder of the model that they were made from\n",
    );
    quantized(r#"{"quant_method": "gptq", "bits": 4}"#);
    let said = world.run(&["train", "run.yaml", "--quiet", "--device", "cpu", "--set", LORA]);
    assert!(
        said.stderr.contains("the weights in model are stored as `gptq`, which is not supported"),
        "{}",
        said.stderr
    );
}

#[test]
fn an_adapter_knows_its_base() {
    let world = World::new();
    let eval = |model: &str, more: &[&str]| {
        let args = [&["eval", model, "--data", "train.jsonl", "--task", "sft", "--json"][..], more].concat();
        let said = world.run(&args).ok();
        (said.json()["loss"].as_f64().expect("a loss"), said.stderr)
    };
    for format in FORMATS {
        let out = format!("out-{format}");
        let train = ["train", "run.yaml", "--quiet", "--out", &out, "--set", LORA];
        let train = [&train[..], &["--set", "optimizer.lr=0.05", "--set", "save.every=2"]].concat();
        world.run(&[&train[..], &["--base", format]].concat()).ok();
        let adapter = format!("{out}/final");
        let config: Json = world.json(&format!("{adapter}/base_quantization.json"));
        assert_eq!(config["base"], format);
        assert_eq!(config["quantization_config"].is_object(), format != "fp8");
        assert_eq!(world.json(&format!("{adapter}/adapter_config.json"))["base_model_name_or_path"], "model");
        // Evaluated as it was trained, unless one says otherwise.
        let lines = world.metrics(&out);
        let last = lines.iter().rev().find_map(|line| line["eval"]["loss"].as_f64()).expect("an evaluation");
        let (trained, stderr) = eval(&adapter, &[]);
        assert!((trained - last).abs() < 1e-6 * last, "{format}: {trained}, the run had {last}");
        assert!(stderr.contains(&format!("the adapter was trained on a base in {format}")), "{stderr}");
        let (named, _) = eval(&adapter, &["--base", format]);
        assert_eq!(named, trained);
        let (whole, stderr) = eval(&adapter, &["--base", "fp32"]);
        assert!(whole != trained && !stderr.contains("was trained on"), "{format}: {whole}");
        world.run(&["generate", &out, "--prompt", "a", "--max-new", "2", "--json", "--quiet"]).ok();
        // Merged, it stands beside the whole base.
        let merged = format!("merged-{format}");
        let said = world.run(&["merge", &out, "--out", &merged, "--json", "--quiet"]).ok().json();
        let error = said["base_error"]["relative_rms"].as_f64().expect("an error");
        assert!((0.001..0.15).contains(&error) && said["base_error"]["format"] == format, "{said}");
        let host = |key: &str| said["host"][key].as_u64().expect("a size");
        assert!(host("used_bytes") <= host("planned_bytes"), "{said}");
        let (of_merged, _) = eval(&merged, &[]);
        assert!((of_merged - whole).abs() < 1e-5 * whole, "{format}: {of_merged} instead of {whole}");
        // The run goes on beside its own base alone.
        let args = [&train[..], &["--resume", "--steps", "6", "--base"]].concat();
        for other in ["fp32", "nf4", "int8"].iter().filter(|other| **other != format) {
            let said = world.run(&[&args[..], &[*other]].concat());
            assert_eq!(said.code, Some(2), "{}", said.stderr);
            assert!(said.stderr.contains(&format!("`base` has changed from {format} to ")), "{}", said.stderr);
        }
        world.run(&[&args[..], &[format]].concat()).ok();
    }
    let said = world.run(&["merge", "out-nf4", "--out", "again"]).ok();
    assert!(said.stdout.contains("the adapter was trained beside nf4"), "{}", said.stdout);
}
