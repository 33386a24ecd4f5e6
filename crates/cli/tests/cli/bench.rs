//! `plimsoll bench`.

use crate::support::{SHAPE, World};

#[test]
fn json_has_every_promised_key() {
    let run = format!("{SHAPE}data: {{max_length: 32}}\nbatch: {{sequences: 4}}\n");
    let world = World::bare(&run);
    let said = world.run(&["bench", "run.yaml", "--json", "--steps", "2"]).ok();
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
