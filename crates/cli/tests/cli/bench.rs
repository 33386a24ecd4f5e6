//! `plimsoll bench`.

use crate::support::{SHAPE, World};

#[test]
fn json_has_every_promised_key() {
    let run = format!("{SHAPE}data: {{max_length: 32}}\nbatch: {{sequences: 4}}\n");
    let world = World::bare(&run);
    let said = world.run(&["bench", "run.yaml", "--json", "--steps", "2", "--device", "cpu"]).ok();
    assert_eq!(said.stderr, "");
    let result = said.json();
    assert_eq!((result["device"].as_str(), result["steps"].as_u64()), (Some("cpu"), Some(2)));
    for key in ["tokens_per_s", "step_ms", "first_step_s", "predicted_step_ms", "loss_first", "loss_last"] {
        assert!(result[key].as_f64().is_some_and(|x| x > 0.0), "{key}: {result}");
    }
    for memory in ["gpu", "host"] {
        for key in ["planned_bytes", "used_bytes"] {
            assert!(result[memory][key].is_u64(), "{memory}.{key}: {result}");
        }
    }
    assert!(result["host"]["used_bytes"].as_u64().unwrap() > 0);
    assert_eq!(world.names("."), ["run.yaml"], "a bench leaves nothing behind");
}

/// A text of the run's model, whatever the run trains, within its plan and without a word in between.
#[test]
fn a_text_is_timed_behind_its_first_token() {
    let world = World::bare(&format!("{SHAPE}method: lora\ndata: {{max_length: 32}}\n"));
    let text = |more: &[&str]| {
        let args = [&["bench", "run.yaml", "--json", "--device", "cpu", "--generate", "20"], more].concat();
        world.run(&args).ok().json()
    };
    let result = text(&[]);
    assert_eq!((result["prompt_tokens"].as_u64(), result["new_tokens"].as_u64()), (Some(12), Some(20)));
    for key in ["first_token_ms", "tokens_per_s", "token_ms", "predicted_token_ms"] {
        assert!(result[key].as_f64().is_some_and(|x| x > 0.0), "{key}: {result}");
    }
    let (used, planned) = (&result["host"]["used_bytes"], &result["host"]["planned_bytes"]);
    assert!(used.as_u64() <= planned.as_u64(), "{result}");
    let few = text(&["--set", "base=nf4"]);
    assert!(few["weights_bytes"].as_u64() < result["weights_bytes"].as_u64(), "{few} {result}");
    let profiled = world.run(&["bench", "run.yaml", "--device", "cpu", "--generate", "8", "--profile"]).ok().stdout;
    for operator in ["linear", "cached_attention", "rms_norm"] {
        assert!(profiled.lines().any(|line| line.starts_with(operator)), "{operator}: {profiled}");
    }
    let args = ["bench", "run.yaml", "--device", "cpu", "--generate", "32"];
    let said = world.run(&args);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("--generate is 32, but a text has data.max_length = 32 tokens"), "{}", said.stderr);
}

#[test]
fn without_a_file_it_is_the_quickstart_s_model() {
    let world = World::bare("");
    let result = world.run(&["bench", "--json", "--steps", "1", "--device", "cpu"]).ok().json();
    // A new model spreads its guesses evenly over the quickstart's 260 tokens.
    let loss = result["loss_first"].as_f64().unwrap();
    assert!((loss - 260f64.ln()).abs() < 0.3, "{result}");
}

#[test]
fn a_folder_in_shards_brings_its_own_weights() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/parity/llama/model");
    let world = World::bare("data: {max_length: 32}\nbatch: {sequences: 4}\nplan: {micro_batch_tokens: 64}\n");
    let setting = format!("model={folder}");
    let first_loss = |rest: &[&str]| {
        let args = [&["bench", "run.yaml", "--json", "--steps", "1", "--set", &setting], rest].concat();
        world.run(&args).ok().json()["loss_first"].to_string()
    };
    assert_eq!(first_loss(&["--seed", "1"]), first_loss(&["--seed", "2"]));
    assert_ne!(first_loss(&[]), first_loss(&["--set", "init=random"]));
}

/// The kernel's peak of the whole process, from its first instruction on, against the plan.
#[test]
fn what_is_planned_is_what_is_used() {
    let model = "family: llama, num_attention_heads: 8, num_key_value_heads: 8, init: random";
    for (shape, budget) in [
        ("hidden_size: 384, num_hidden_layers: 4, intermediate_size: 1024, vocab_size: 6000", "600MiB"),
        ("hidden_size: 512, num_hidden_layers: 8, intermediate_size: 1408, vocab_size: 16000", "1GiB"),
        ("hidden_size: 512, num_hidden_layers: 8, intermediate_size: 1408, vocab_size: 16000", "700MiB"),
    ] {
        let world = World::bare(&format!(
            "model: {{{model}, {shape}}}\ntask: pretrain\ndata: {{max_length: 64}}\nbatch: {{sequences: 4}}\n"
        ));
        let args = ["bench", "run.yaml", "--json", "--steps", "1", "--device", "cpu", "--host", budget];
        let result = world.run(&args).ok().json();
        let bytes = |key: &str| result["host"][key].as_f64().expect("a size");
        let (planned, used) = (bytes("planned_bytes"), bytes("used_bytes"));
        assert!(planned > 200e6, "{budget}: a run of some size: {result}");
        assert!(used <= planned, "{budget}: used {used} of {planned}");
        assert!(used >= 0.97 * planned, "{budget}: used only {used} of {planned}");
    }
}
