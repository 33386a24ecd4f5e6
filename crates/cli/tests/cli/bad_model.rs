//! Model folders that cannot be used: exit code 4, with the file and the tensor.

use std::fs;

use crate::support::{Refusal, World, refused};

const ARGS: [&str; 4] = ["train", "run.yaml", "--out", "out"];

#[track_caller]
fn check(change: impl FnOnce(&World), expected: &str) {
    refused(change, &Refusal { args: &ARGS, code: 4, expected });
}

/// Configuration and weights of different models.
const DIFFERENT: &str = "hint: config.json and the weights must belong to one model; download both again\n";

#[test]
fn no_configuration() {
    check(
        |world| fs::remove_file(world.path("model/config.json")).unwrap(),
        "error: model/config.json: No such file or directory (os error 2)\n\
         hint: a model's folder holds config.json, model.safetensors (or shards) and tokenizer.json, \
         as Hugging Face writes them\n",
    );
}

#[test]
fn configuration_that_is_not_json() {
    check(
        |world| world.write("model/config.json", "{bad"),
        "error: model/config.json: not valid JSON: key must be a string at line 1 column 2\n",
    );
}

#[test]
fn unsupported_model_type() {
    check(
        |world| world.write("model/config.json", "{\"model_type\": \"gpt2\"}"),
        "error: model/config.json: model type `gpt2` is not supported; supported are llama, mistral, qwen2, qwen3, gemma2\n",
    );
}

#[test]
fn no_weights() {
    check(
        |world| fs::remove_file(world.path("model/model.safetensors")).unwrap(),
        "error: no weights in model: it has neither model.safetensors nor model.safetensors.index.json\n\
         hint: download the weights into the folder\n",
    );
}

#[test]
fn truncated_weights() {
    let world = World::new();
    let bytes = world.read("model/model.safetensors");
    let (whole, kept) = (bytes.len(), bytes.len() - 100);
    let cut = |world: &World, length: usize| world.write("model/model.safetensors", &bytes[..length]);
    check(
        |world| cut(world, kept),
        &format!(
            "error: model/model.safetensors is truncated: its header promises {whole} bytes, the file has {kept}\n\
             hint: download or copy it again\n"
        ),
    );
    check(
        |world| cut(world, 4),
        "error: model/model.safetensors is truncated: its header promises 8 bytes, the file has 4\n\
         hint: download or copy it again\n",
    );
}

#[test]
fn weights_that_are_something_else() {
    let world = World::new();
    world.write("model/model.safetensors", "<html>404 not found</html>");
    let said = world.run(&ARGS);
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    assert!(said.stderr.starts_with("error: model/model.safetensors: not a safetensors file: "), "{}", said.stderr);
    assert!(!world.path("out").exists());
}

#[test]
fn tensor_of_the_wrong_shape() {
    check(
        |world| world.edit("model/config.json", "\"intermediate_size\": 64", "\"intermediate_size\": 80"),
        &format!(
            "error: model/model.safetensors: `model.layers.0.mlp.gate_proj.weight` has shape [64, 32], \
             the model's configuration asks for [80, 32]\n{DIFFERENT}"
        ),
    );
}

#[test]
fn missing_tensor() {
    check(
        |world| world.edit("model/config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
        &format!("error: the weights in model have no tensor `model.layers.2.input_layernorm.weight`\n{DIFFERENT}"),
    );
}
