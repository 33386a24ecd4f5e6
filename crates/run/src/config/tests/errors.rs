//! Every kind of mistake, with its message in full.

use super::*;
use crate::failure::Code;

#[track_caller]
fn check(yaml: &str, expected: &str) {
    let failure = parse(yaml).expect_err(yaml);
    assert_eq!(failure.code(), Code::Usage, "{yaml}");
    assert_eq!(failure.to_string(), expected, "{yaml}");
}

#[test]
fn unknown_keys() {
    check(
        "model: tiny\noptimiser:\n  lr: 1\n",
        "error: run.yaml:2:1: unknown key `optimiser`\n\
         hint: did you mean `optimizer`?\n\
         hint: allowed at the top level: model, init, task, reward, ranking, dpo, orpo, init_from, \
         train_padding, method, base, precision, data, batch, memory, optimizer, schedule, clip, eval, save, log, guard, seed, out, name, device, mode, plan",
    );
    check(
        "model: tiny\noptimizer: {name: adamw, learning_rate: 1e-4}\n",
        "error: run.yaml:2:26: unknown key `optimizer.learning_rate`\n\
         hint: did you mean `optimizer.lr`?\n\
         hint: allowed under `optimizer`: name, lr, weight_decay, decay_norms, betas, eps, momentum, state, \
         muon, adafactor, groups",
    );
    check(
        "model: tiny\nbatch:\n  max_length: 512\n",
        "error: run.yaml:3:3: unknown key `batch.max_length`\n\
         hint: did you mean `data.max_length`?\n\
         hint: allowed under `batch`: sequences, tokens",
    );
    check(
        "model: tiny\nmethod: {lora: {rnak: 8}}\n",
        "error: run.yaml:2:17: unknown key `method.lora.rnak`\n\
         hint: did you mean `method.lora.r`?\n\
         hint: allowed under `method.lora`: r, alpha, dropout, targets, rslora",
    );
    check(
        "model: tiny\nsave: {zzz: 1}\n",
        "error: run.yaml:2:8: unknown key `save.zzz`\n\
         hint: allowed under `save`: every, minutes, keep, best",
    );
}

#[test]
fn wrong_types() {
    check("model: tiny\nseed: soon\n", "error: run.yaml:2:7: `seed` must be a whole number of at least 0, not `soon`");
    check("model: tiny\nseed: \"-1\"\n", "error: run.yaml:2:7: `seed` must be a whole number of at least 0, not `-1`");
    check(
        "model: tiny\noptimizer: {lr: fast}\n",
        "error: run.yaml:2:17: `optimizer.lr` must be a number above 0, not `fast`",
    );
    check(
        "model: tiny\ndata: train.jsonl\n",
        "error: run.yaml:2:7: `data` must be a mapping of train, eval, eval_split, format, columns, classes, \
         max_length, overlong, shuffle, tokenizer, template, mode, cache, buffer, workers, bad_rows, not `train.jsonl`\n\
         hint: for example data: {train: train.jsonl}",
    );
    check(
        "model: tiny\ndata: {shuffle: yes}\n",
        "error: run.yaml:2:17: `data.shuffle` must be `true` or `false`, not `yes`",
    );
    check("model: tiny\nclip: [1.0]\n", "error: run.yaml:2:7: `clip` must be a number above 0 or `none`, not `[1.0]`");
    check(
        "model: tiny\nmethod: 3\n",
        "error: run.yaml:2:9: `method` must be `full` or `lora`, not `3`\n\
         hint: or a mapping of full, lora, freeze",
    );
    check(
        "model: [a, b]\n",
        "error: run.yaml:1:8: `model` must be a string, not `[a, b]`\n\
         hint: or a mapping of family, hidden_size, num_hidden_layers, num_attention_heads, \
         num_key_value_heads, head_dim, intermediate_size, vocab_size, max_position_embeddings, \
         rms_norm_eps, rope_theta, rope_scaling, sliding_window, use_sliding_window, max_window_layers, \
         tie_word_embeddings, attention_bias, mlp_bias, hidden_act, initializer_range, pad_token_id, \
         final_logit_softcapping, attn_logit_softcapping, query_pre_attn_scalar, d_model, d_kv, d_ff, num_layers, \
         num_decoder_layers, num_heads, relative_attention_num_buckets, relative_attention_max_distance, \
         layer_norm_epsilon, feed_forward_proj, dropout_rate, decoder_start_token_id, init",
    );
    check(
        "model: tiny\nplan: {recompute: gate_up}\n",
        "error: run.yaml:2:19: `plan.recompute` must be a mapping of names to numbers of layers, not `gate_up`",
    );
    check(
        "model: tiny\nplan: {recompute: {gate_up: some}}\n",
        "error: run.yaml:2:29: `plan.recompute.gate_up` must be a whole number of at least 0, not `some`",
    );
    check(
        "- model\n",
        "error: run.yaml:1:1: a run file must be a mapping of keys to values, not `[model]`\n\
         hint: for example `model: qwen3-0.6b`; `plimsoll init` writes a file to start from",
    );
    check(
        "model: tiny\nseed:\n",
        "error: run.yaml:2:5: `seed` has no value\n\
         hint: it must be a whole number of at least 0",
    );
}

#[test]
fn quotes_make_a_string() {
    for (key, value, allowed) in [
        ("seed", "42", "a whole number of at least 0"),
        ("clip", "1.0", "a number above 0 or `none`"),
        ("plan.loss_chunks", "4", "a whole number of at least 1"),
        ("schedule.warmup", "0.1", "a fraction of the run (below 1) or a whole number of steps"),
        ("data.shuffle", "true", "`true` or `false`"),
    ] {
        let failure = load(source("model: tiny\n"), &set(&[&format!("{key}=\"{value}\"")])).expect_err(key);
        assert_eq!(
            failure.to_string(),
            format!("error: --set {key}: `{key}` must be {allowed}, not the string `{value}`\nhint: remove the quotes")
        );
    }
    assert_eq!(run("memory: {gpu: \"12GiB\"}\nname: \"7\"\n").memory.gpu, Budget::Bytes(12 << 30));
}

#[test]
fn keys_of_other_trainers() {
    let hint = |text: &str| parse(&format!("model: tiny\n{text}\n")).expect_err(text).hints[0].clone();
    for (text, ours) in [
        ("learning_rate: 1e-4", "optimizer.lr"),
        ("num_train_epochs: 3", "schedule.epochs"),
        ("lora_alpha: 32", "method.lora.alpha"),
        ("lora_target_modules: [q_proj]", "method.lora.targets"),
        ("warmup_ratio: 0.1", "schedule.warmup"),
        ("cutoff_len: 512", "data.max_length"),
        ("base_model: x", "model"),
        ("save_total_limit: 3", "save.keep"),
        ("lr_scheduler_type: cosine", "schedule"),
        ("logging_steps: 10", "log.every"),
        ("optimizer: {Learning-Rate: 1}", "optimizer.lr"),
    ] {
        assert_eq!(hint(text), format!("did you mean `{ours}`?"));
    }
    for (text, part) in [
        ("per_device_train_batch_size: 4", "`batch.sequences`"),
        ("gradient_accumulation_steps: 8", "`plan.micro_batch_tokens`"),
        ("micro_batch_size: 2", "`batch.sequences`"),
        ("load_in_4bit: true", "`base: nf4`"),
        ("load_in_8bit: true", "`base: int8`"),
        ("quantization_config: {load_in_4bit: true}", "`base: nf4`"),
        ("use_dora: true", "there is no such key"),
        ("bf16: true", "`precision: bf16`"),
        ("training: {fp16: true}", "allowed at the top level"),
        ("batch: {gradient_accumulation_steps: 8}", "`batch.sequences`"),
        ("gradient_checkpointing: true", "`plan.recompute`"),
        ("report-to: wandb", "metrics.jsonl"),
        ("deepspeed: ds.json", "one device"),
        ("sample_packing: true", "no key is needed"),
    ] {
        assert!(hint(text).contains(part), "{text}: {}", hint(text));
    }
    check(
        "model: tiny\nper_device_eval_batch_size: 8\n",
        "error: run.yaml:2:1: unknown key `per_device_eval_batch_size`\n\
         hint: no key is needed: evaluation uses micro-batches of the size that training uses",
    );
    check(
        "model: tiny\noptimizer: adamw\n",
        "error: run.yaml:2:12: `optimizer` must be a mapping of name, lr, weight_decay, decay_norms, betas, eps, momentum, state, muon, adafactor, groups, \
         not `adamw`\n\
         hint: for example optimizer: {name: adamw}",
    );
}

#[test]
fn sources_with_weights() {
    let check = |train: &str, expected: &str| check(&format!("model: tiny\ndata:\n  train: {train}\n"), expected);
    check(
        "[{path: a.jsonl, weight: 2}, b.jsonl]",
        "error: run.yaml:3:39: `data.train[1]` has no weight, but 1 of the 2 sources have one\n\
         hint: set a weight for every source, as in {path: a.jsonl, weight: 2}, or for none",
    );
    check(
        "[{path: a.jsonl, weight: 0}]",
        "error: run.yaml:3:35: `data.train[0].weight` must be a number above 0, not `0`",
    );
    check(
        "[{path: a.jsonl, wieght: 1}]",
        "error: run.yaml:3:27: unknown key `data.train[0].wieght`\n\
         hint: did you mean `data.train[0].weight`?\n\
         hint: allowed under `data.train[0]`: path, weight",
    );
    check("[{weight: 1}]", "error: run.yaml:3:11: `data.train[0].path` is missing\nhint: it must be a string");
    check("[[a]]", "error: run.yaml:3:11: `data.train[0]` must be a path or {path, weight}, not `[a]`");
    check(
        "{path: a}",
        "error: run.yaml:3:10: `data.train` must be a path, a list of paths or a list of {path, weight}, not a mapping",
    );
    check(
        "[]",
        "error: run.yaml:3:10: `data.train` must be a path, a list of paths or a list of {path, weight}, not `[]`",
    );
}

#[test]
fn values_out_of_range() {
    check(
        "model: tiny\nbatch: {sequences: 0}\n",
        "error: run.yaml:2:20: `batch.sequences` must be a whole number from 1 to 1048576, not `0`",
    );
    check(
        "model: tiny\noptimizer: {betas: [0.9, 1.0]}\n",
        "error: run.yaml:2:20: `optimizer.betas` must be a list of 2 numbers, each from 0 to below 1, not `[0.9, 1.0]`",
    );
    check(
        "model: tiny\nschedule: {warmup: 2.5}\n",
        "error: run.yaml:2:20: `schedule.warmup` must be a fraction of the run (below 1) or a whole number of \
         steps, not `2.5`",
    );
    check(
        "model: tiny\nschedule: {name: cosinus}\n",
        "error: run.yaml:2:18: `schedule.name` must be `constant`, `linear`, `cosine`, `polynomial`, \
         `inverse-sqrt`, `onecycle` or \
         `constant-linear`, not `cosinus`\n\
         hint: did you mean `cosine`?",
    );
    check(
        "model: tiny\noptimizer: {lr: .inf}\n",
        "error: run.yaml:2:17: `optimizer.lr` must be a number above 0, not `.inf`",
    );
    check(
        "model: tiny\nmemory:\n  gpu: 0\n",
        "error: run.yaml:3:8: `memory.gpu` must be a size, a percentage or `auto`, not `0`\n\
         hint: a budget must be above 0; omit it or set `auto` to use the available memory",
    );
    check(
        "model: tiny\nmemory: {host: -4GiB}\n",
        "error: run.yaml:2:16: `memory.host` must be a size, a percentage or `auto`, not `-4GiB`\n\
         hint: a budget must be above 0; omit it or set `auto` to use the available memory",
    );
    check(
        "model: tiny\nmemory: {gpu: 12G}\n",
        "error: run.yaml:2:15: `memory.gpu` must be a size, a percentage or `auto`, not `12G`\n\
         hint: use `GiB` (1024 MiB) or `GB` (1000 MB)",
    );
}

#[test]
fn keys_that_do_not_go_together() {
    check(
        "model: tiny\nbatch: {sequences: 8, tokens: 4096}\n",
        "error: run.yaml:2:23: `batch.tokens` conflicts with `batch.sequences`; set only one of them",
    );
    check(
        "model: tiny\nmethod: {lora: {r: 8}, freeze: [embed]}\n",
        "error: run.yaml:2:24: `method.freeze` conflicts with `method.lora`; set only one of them",
    );
    check(
        "model: tiny\nschedule: {name: cosine, decay_start: 0.8}\n",
        "error: run.yaml:2:39: `schedule.decay_start` applies to `constant-linear`, but the schedule is `cosine`\n\
         hint: remove it, or set `schedule.name` to `constant-linear`",
    );
    check(
        "model: tiny\noptimizer: {momentum: 0.9}\n",
        "error: run.yaml:2:23: `optimizer.momentum` applies to `sgd` and `muon`, but the optimizer is `adamw`\n\
         hint: use the first of `optimizer.betas` instead",
    );
    check(
        "model: tiny\noptimizer: {name: sgd, betas: [0.9, 0.99]}\n",
        "error: run.yaml:2:31: `optimizer.betas` applies to `adamw`, `lion` and `muon`, but the optimizer is `sgd`\n\
         hint: remove it, or set `optimizer.name`",
    );
    check(
        "model: tiny\noptimizer: {name: lion, eps: 1e-8}\n",
        "error: run.yaml:2:30: `optimizer.eps` applies to `adamw`, `muon` and `adafactor`, but the optimizer is `lion`\n\
         hint: remove it, or set `optimizer.name`",
    );
    check(
        "model: tiny\noptimizer: {groups: [{match: lm_head, name: sgd, eps: 1e-6}]}\n",
        "error: run.yaml:2:55: `optimizer.groups[0].eps` applies to `adamw`, `muon` and `adafactor`, but the optimizer is \
         `sgd`\nhint: remove it, or set `optimizer.groups[0].name`",
    );
    check(
        "model: tiny\noptimizer: {groups: [{lr: 1e-3}]}\n",
        "error: run.yaml:2:22: `optimizer.groups[0].match` is missing\nhint: it must be a string or a list of strings",
    );
    // What a group's rule looks at may stand outside, and so may what Muon leaves to AdamW.
    run("optimizer: {betas: [0.9, 0.95], momentum: 0.9, groups: [{match: lm_head, name: sgd}]}\n");
    run("optimizer: {name: muon, betas: [0.9, 0.95], eps: 1e-10, momentum: 0.9}\n");
}

#[test]
fn what_is_missing() {
    check(
        "task: sft\n",
        "error: run.yaml: `model` is missing\n\
         hint: it must be a string or a mapping\n\
         hint: a preset such as `qwen3-0.6b`, a Hugging Face folder, a hub id, or the shape as a mapping",
    );
    check(
        "model: {family: llama, hidden_size: 64}\n",
        "error: run.yaml:1:8: `model.num_hidden_layers` is missing\n\
         hint: it must be a whole number from 1 to 4096",
    );
}

#[test]
fn an_alias_is_wrong_where_it_is_used() {
    check(
        "model: &m tiny\nname: *m\nseed: *m\n",
        "error: run.yaml:3:7: `seed` must be a whole number of at least 0, not `tiny`",
    );
}

#[test]
fn yaml_that_cannot_be_read() {
    check(
        "model: tiny\nmodel: big\n",
        "error: run.yaml:2:1: not valid YAML: duplicate mapping key: model not allowed here",
    );
    check(
        "model: tiny\n  task: sft\n",
        "error: run.yaml:2:7: not valid YAML: mapping values are not allowed in this context",
    );
}

#[track_caller]
fn check_overrides(overrides: &Overrides, expected: &str) {
    let failure = load(source("model: tiny\n"), overrides).expect_err(expected);
    assert_eq!(failure.code(), Code::Usage);
    assert_eq!(failure.to_string(), expected);
}

#[test]
fn errors_above_the_file() {
    check_overrides(
        &environment(&[("PLIMSOLL_OPTIMIZER_LR", "fast")]),
        "error: PLIMSOLL_OPTIMIZER_LR: `optimizer.lr` must be a number above 0, not `fast`",
    );
    check_overrides(
        &environment(&[("PLIMSOLL_OPTIMISER_LR", "1e-4")]),
        "error: environment variable PLIMSOLL_OPTIMISER_LR does not match any configuration key\n\
         hint: did you mean PLIMSOLL_OPTIMIZER_LR?\n\
         hint: PLIMSOLL_* variables mirror the keys of the run file, such as PLIMSOLL_OPTIMIZER_LR for `optimizer.lr`; unset it",
    );
    check_overrides(
        &set(&["optimizer.lrr=1"]),
        "error: --set optimizer.lrr: unknown key `optimizer.lrr`\n\
         hint: did you mean `optimizer.lr`?\n\
         hint: allowed under `optimizer`: name, lr, weight_decay, decay_norms, betas, eps, momentum, state, \
         muon, adafactor, groups",
    );
    check_overrides(
        &set(&["seed"]),
        "error: --set seed: expected KEY=VALUE\n\
         hint: for example --set optimizer.lr=1e-4",
    );
    check_overrides(
        &set(&["seed.x=1"]),
        "error: --set seed.x: `seed` must be a whole number of at least 0, not a mapping",
    );
    let flags = vec![Flag { name: "--gpu", path: "memory.gpu", value: "0".to_owned() }];
    check_overrides(
        &Overrides { flags, ..Overrides::default() },
        "error: --gpu: `memory.gpu` must be a size, a percentage or `auto`, not `0`\n\
         hint: a budget must be above 0; omit it or set `auto` to use the available memory",
    );
}
