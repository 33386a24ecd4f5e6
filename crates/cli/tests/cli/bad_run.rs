//! Runs that make no sense or that this version cannot do: exit code 2, with the place and what is allowed.

use crate::support::{Refusal, SHAPE, World, refused, refused_in, refused_set};

#[test]
fn what_this_version_cannot_do() {
    let world = World::new();
    let check = |setting: &str, supported: &str| {
        let (key, value) = setting.split_once('=').unwrap();
        let expected = format!(
            "error: --set {key}: `{key}` is `{value}`, which is not supported yet\n\
             hint: supported: {supported}\n"
        );
        refused_set(&world, setting, 2, &expected);
    };
    check("precision=bf16", "fp32 on the CPU");
}

#[test]
fn unknown_model() {
    let presets = "hint: presets are mistral-7b, llama-3.1-8b, llama-3.2-1b, llama-3.2-3b, qwen2.5-0.5b, \
        qwen2.5-1.5b, qwen2.5-7b, qwen3-0.6b, qwen3-4b, qwen3-8b, tinyllama-1.1b, smollm2-135m, smollm2-360m\n";
    let expected = format!("error: run.yaml:1:8: model `mistral-8b` is neither a folder here nor a preset\n{presets}");
    let world = World::bare("model: mistral-8b\n");
    for command in ["plan", "bench", "train"] {
        refused_in(&world, &Refusal { args: &[command, "run.yaml"], code: 2, expected: &expected });
    }
}

#[test]
fn preset_without_weights() {
    let expected = "error: run.yaml:1:8: the preset `smollm2-135m` has no weights\n\
        hint: set `model` to the folder of a downloaded model, or train from random weights with `init: random`\n";
    let args = ["train", "run.yaml", "--out", "out"];
    refused(
        |world| world.edit("run.yaml", "model: model", "model: smollm2-135m"),
        &Refusal { args: &args, code: 2, expected },
    );
}

#[test]
fn shape_that_cannot_be_built() {
    let world = World::bare(SHAPE);
    let check = |setting: &str, reason: &str| {
        let said = world.run(&["plan", "run.yaml", "--set", setting]);
        assert_eq!(said.code, Some(2), "{}", said.stderr);
        assert!(said.stderr.starts_with("error: run.yaml:1:8: the model cannot be built: "), "{}", said.stderr);
        assert!(said.stderr.contains(reason), "{}", said.stderr);
    };
    check("model.num_key_value_heads=3", "4 attention heads cannot share 3 key-value heads evenly");
    check(
        "model.hidden_act=quack",
        "`hidden_act: quack` is not supported; use silu, gelu, gelu_pytorch_tanh, relu or relu2",
    );
}

#[test]
fn numbers_beyond_all_measure() {
    let world = World::bare(SHAPE);
    let check = |setting: &str, range: &str| {
        let (key, value) = setting.split_once('=').unwrap();
        let expected = format!("error: --set {key}: `{key}` must be a whole number from {range}, not `{value}`\n");
        refused_in(&world, &Refusal { args: &["plan", "run.yaml", "--set", setting], code: 2, expected: &expected });
    };
    check("data.max_length=1", "2 to 16777216");
    check("data.max_length=10000000000000000", "2 to 16777216");
    check("model.vocab_size=100000000000", "1 to 16777216");
    check("model.num_hidden_layers=1000000", "1 to 4096");
    check("method.lora.r=10000000000", "1 to 65536");
    check("batch.sequences=100000000000", "1 to 1048576");
}

/// Times beyond what can be counted are as long as can be.
#[test]
fn times_beyond_all_measure() {
    let world = World::new();
    world.run(&["train", "run.yaml", "--quiet", "--out", "out", "--set", "save.minutes=1e300"]).ok();
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 4090", "--steps", "9223372036854775807"]).ok();
    assert!(said.stdout.contains("9223372036854775807 updates take about"), "{}", said.stdout);
}

#[test]
fn methods_that_touch_nothing() {
    let world = World::new();
    refused_set(
        &world,
        "method={freeze: [\"nothing*\"]}",
        2,
        "error: --set method: freeze pattern `nothing*` matches no parameter; \
         patterns are Hugging Face names with `*`, such as `model.embed_tokens*`\n",
    );
    refused_set(
        &world,
        "method={freeze: [\"*\"]}",
        2,
        "error: nothing is left to train: the freeze patterns cover every parameter\n",
    );
    refused_set(
        &world,
        "method={lora: {targets: [c_attn]}}",
        2,
        "error: --set method: adapter target `c_attn` names no linear layer of this model; \
         it has q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj\n",
    );
}

#[test]
fn batch_that_is_not_whole_sequences() {
    refused_set(
        &World::new(),
        "batch.tokens=31",
        2,
        "error: --set batch.tokens: `batch.tokens` is 31, but one sequence may have 32 tokens (data.max_length)\n\
         hint: set batch.tokens to 32 or more, or lower data.max_length\n",
    );
}

#[test]
fn pins_out_of_range() {
    let world = World::new();
    refused_set(
        &world,
        "plan.micro_batch_tokens=10",
        2,
        "error: --set plan.micro_batch_tokens: `plan.micro_batch_tokens` is 10, \
         but one sequence may have 32 tokens (data.max_length)\n",
    );
    refused_set(
        &world,
        "plan.loss_chunks=1000",
        2,
        "error: --set plan.loss_chunks: `plan.loss_chunks` is 1000, but a micro-batch of 64 tokens has 1 to 64 chunks\n",
    );
    refused_set(
        &world,
        "plan.mlp_chunks=65",
        2,
        "error: --set plan.mlp_chunks: `plan.mlp_chunks` is 65, but a micro-batch of 64 tokens has 1 to 64 chunks\n",
    );
    refused_set(
        &world,
        "plan.keep=int8",
        2,
        "error: --set plan.keep: `plan.keep` must be `exact` or `fp8`, not `int8`\n",
    );
    refused_set(
        &world,
        "plan.keep=fp8",
        2,
        "error: --set plan.keep: `plan.keep` is fp8, but only adapters' gradients may be made from rounded values\n\
         hint: remove plan.keep, or train adapters: `method: {lora: {}}`\n",
    );
    refused_set(
        &world,
        "plan.recompute={gate_up: 9}",
        2,
        "error: --set plan.recompute: `plan.recompute.gate_up` is 9, but only 2 layers have that class\n",
    );
    refused_set(
        &world,
        "plan.recompute={foo: 1}",
        2,
        "error: --set plan.recompute: unknown class `foo` in `plan.recompute`; expected one of \
         attn_norm, attn_out, embedded, gate_up, mlp_act, mlp_norm, residual_mid, rotated\n",
    );
}

#[test]
fn unknown_device() {
    let world = World::new();
    for device in ["RTX 4090", "RTX 9999"] {
        let expected = format!(
            "error: --device: `{device}` is not a device of this machine\n\
             hint: use --device cpu or --device cuda:0; `plimsoll plan` accepts any GPU in its table\n"
        );
        let args = ["train", "run.yaml", "--out", "out", "--device", device];
        refused_in(&world, &Refusal { args: &args, code: 2, expected: &expected });
    }
    // With or without a GPU, there is no such card; what is missing differs.
    let said = world.run(&["train", "run.yaml", "--out", "out", "--device", "cuda:99"]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.starts_with("error: --device: "), "{}", said.stderr);
    assert!(said.stderr.contains("hint: ") || said.stderr.contains("GPU 99"), "{}", said.stderr);
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 9999"]);
    assert_eq!(said.code, Some(2));
    let expected = "error: --device: unknown device `RTX 9999`\nhint: expected cpu, cuda:N or one of: RTX 3050 8GB, RTX 3060 12GB, ";
    assert!(said.stderr.starts_with(expected), "{}", said.stderr);
    let check = |device: &str, expected: &str| {
        let said = world.run(&["plan", "run.yaml", "--device", device]);
        assert_eq!(said.code, Some(2));
        assert!(said.stderr.contains(expected), "{}", said.stderr);
    };
    check("RTX 4060 Ti", "hint: did you mean RTX 4060 Ti 8GB or RTX 4060 Ti 16GB?");
    check("T4", "`T4` is below compute capability 8.0, which the kernels need");
    check("RTX 9999", "hint: any other GPU: device: {memory: 8GiB, tflops: 40, bandwidth: 400GB/s}");
}

#[test]
fn budget_that_is_far_too_small() {
    let world = World::new();
    let said = world.run(&["train", "run.yaml", "--out", "out", "--host", "1MiB"]);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(said.stderr.starts_with("error: does not fit: the smallest plan needs "), "{}", said.stderr);
    assert!(
        said.stderr.contains(" of host memory, the budget is 1.0 MiB\nhint: the smallest budget that works is --host ")
    );
    assert!(!world.path("out").exists());
}

#[test]
fn out_that_is_taken() {
    let world = World::new();
    world.write("taken/metrics.jsonl", "{}\n");
    let args = |out| ["train", "run.yaml", "--out", out];
    let expected = "error: --out: taken is not empty, and what it holds is not a run of this program\n\
        hint: choose a new folder\n";
    refused_in(&world, &Refusal { args: &args("taken"), code: 2, expected });
    assert_eq!(world.names("taken"), ["metrics.jsonl"]);
    // The user's own folder is no place for a run.
    let expected = expected.replace("taken", ".");
    refused_in(&world, &Refusal { args: &args("."), code: 2, expected: &expected });
    let expected = "error: cannot write train.jsonl: Not a directory (os error 20)\n\
        hint: choose a writable folder with --out\n";
    refused_in(&world, &Refusal { args: &args("train.jsonl"), code: 1, expected });
}

#[test]
fn best_checkpoint_without_held_out_data() {
    let expected = "error: --set save.best: `save.best` compares evaluations, but the run has no evaluation data\n\
        hint: set data.eval or data.eval_split, or remove save.best\n";
    let args = ["train", "run.yaml", "--out", "out", "--set", "save.best=loss"];
    refused(|world| world.edit("run.yaml", "eval: train.jsonl, ", ""), &Refusal { args: &args, code: 2, expected });
}

/// What a family does not know would be left unread, and what it needs filled in with the size of its defaults.
#[test]
fn shapes_in_the_words_of_another_family() {
    let world = World::bare(SHAPE);
    let check = |setting: &str, begin: &str| {
        let said = world.run(&["plan", "run.yaml", "--set", setting]);
        assert_eq!(said.code, Some(2), "{}", said.stderr);
        assert!(said.stderr.starts_with(begin), "{}", said.stderr);
    };
    check(
        "model.family=gpt2",
        "error: --set model.family: model type `gpt2` is not supported; supported are llama, mistral, qwen2, qwen3, \
         gemma2, nanochat, t5, mt5\n",
    );
    check(
        "model.d_model=64",
        "error: --set model.d_model: `model.d_model` means nothing to llama models\n\
         hint: they are described by hidden_size, num_hidden_layers, ",
    );
    check("model.query_pre_attn_scalar=8", "error: --set model.query_pre_attn_scalar: ");
    check(
        "model.family=t5",
        "error: run.yaml:1:37: `model.hidden_size` means nothing to t5 models\nhint: they are described by vocab_size, ",
    );
}

/// A name is a folder's in `runs`, not a way out of it.
#[test]
fn names_that_are_paths() {
    let world = World::new();
    for name in ["../evil", "a/b", ".", ".hidden"] {
        let setting = format!("name={name}");
        let expected = format!(
            "error: --set name: `name` is {name}, but a run's folder of that name is made in runs\n\
             hint: use a plain name, or choose the folder itself with --out\n"
        );
        let args = ["train", "run.yaml", "--set", setting.as_str()];
        refused_in(&world, &Refusal { args: &args, code: 2, expected: &expected });
    }
}
