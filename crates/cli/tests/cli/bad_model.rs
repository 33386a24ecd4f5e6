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
        "error: model/config.json: model type `gpt2` is not supported; supported are llama, mistral, qwen2, qwen3, gemma2, nanochat, t5, mt5\n",
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

/// Weights that would have to be unpickled.
#[test]
fn weights_in_files_of_python() {
    let world = World::new();
    fs::rename(world.path("model/model.safetensors"), world.path("model/pytorch_model.bin")).unwrap();
    let said = world.run(&ARGS);
    assert_eq!(said.code, Some(4), "{}", said.stderr);
    let expected = "error: no safetensors files in model: pytorch_model.bin cannot be read, because reading it may run code\n\
        hint: convert the weights with transformers: ";
    assert!(said.stderr.starts_with(expected), "{}", said.stderr);
}

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\n\
    oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";

#[test]
fn a_repository_without_its_large_files() {
    for file in ["model/model.safetensors", "model/tokenizer.json", "train.jsonl"] {
        check(
            |world| world.write(file, POINTER),
            &format!(
                "error: {file} is a Git LFS pointer, not the file itself\n\
                 hint: run `git lfs pull` in its folder, or download the file again\n"
            ),
        );
    }
}

#[test]
fn an_adapter_is_no_model() {
    let expected = |base: &str| {
        format!(
            "error: run.yaml:1:8: model holds a PEFT adapter, not a model\n\
             hint: set `model` to the model that the adapter was trained on{base}\n\
             hint: to train the adapter on, set `init_from` to its folder\n"
        )
    };
    for (config, base) in [("{\"base_model_name_or_path\": \"org/base\"}", ": `org/base`"), ("{}", "")] {
        refused(
            |world| {
                fs::remove_file(world.path("model/config.json")).unwrap();
                world.write("model/adapter_config.json", config);
            },
            &Refusal { args: &ARGS, code: 2, expected: &expected(base) },
        );
    }
}

#[test]
fn numbers_that_are_none() {
    for bits in [f32::NAN.to_bits(), f32::INFINITY.to_bits(), f32::NEG_INFINITY.to_bits()] {
        let world = World::new();
        let mut bytes = world.read("model/model.safetensors");
        let last = bytes.len() - 4;
        bytes[last..].copy_from_slice(&bits.to_le_bytes());
        world.write("model/model.safetensors", &bytes);
        let said = world.run(&[&ARGS[..], &["--quiet"]].concat());
        assert_eq!(said.code, Some(4), "{}", said.stderr);
        let (file, rest) = said.stderr.split_once(": `").unwrap();
        assert_eq!(file, "error: model/model.safetensors");
        assert!(rest.split_once('`').unwrap().1.starts_with(" holds NaN or infinity\nhint: "), "{rest}");
        assert!(!world.path("out").exists());
    }
}

/// A name of the hub is looked for in its cache, and nowhere else.
#[test]
fn a_model_of_the_hub() {
    let world = World::new();
    world.edit("run.yaml", "model: model", "model: org/tiny");
    let run = |args: &[&str]| {
        let mut command = world.command(&[&ARGS[..], args].concat());
        let output = command.env("HF_HOME", world.path("hf")).env_remove("HF_HUB_CACHE").output().unwrap();
        crate::support::Said::from(output)
    };
    let absent = run(&[]);
    assert_eq!(absent.code, Some(2), "{}", absent.stderr);
    let cache = world.path("hf/hub");
    let expected = format!(
        "error: run.yaml:1:8: model `org/tiny` is neither a folder here nor in the Hugging Face cache ({})\n\
         hint: models are not downloaded by plimsoll; fetch it with `hf download org/tiny`\n",
        cache.display()
    );
    assert!(absent.stderr.starts_with(&expected), "{}", absent.stderr);

    let folder = cache.join("models--org--tiny");
    fs::create_dir_all(folder.join("refs")).unwrap();
    fs::create_dir_all(folder.join("snapshots")).unwrap();
    fs::write(folder.join("refs/main"), "0123abcd").unwrap();
    fs::rename(world.path("model"), folder.join("snapshots/0123abcd")).unwrap();
    let said = run(&["--set", "method=lora"]).ok();
    assert!(
        said.stderr.starts_with("running on") || said.stderr.starts_with("model org/tiny: found in "),
        "{}",
        said.stderr
    );
    assert_eq!(world.json("out/final/adapter_config.json")["base_model_name_or_path"], "org/tiny");
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
