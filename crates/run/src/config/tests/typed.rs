//! What the text means.

use super::*;
use crate::failure::Code;

#[test]
fn methods() {
    let lora = |rest: &str| match run(rest).method {
        Method::Lora(lora) => lora,
        Method::Full { .. } => panic!("{rest}"),
    };
    let defaults = lora("method: lora\n");
    let expected = Lora { r: 16, alpha: 32.0, dropout: 0.0, targets: Targets::AllLinear, rslora: false };
    assert_eq!(defaults, expected);
    assert_eq!(lora("method: {lora: }\n"), expected);
    assert_eq!(lora("method: {lora: {}}\n"), expected);
    let some = lora("method: {lora: {r: 4, alpha: 8, targets: [q_proj, v_proj], rslora: true}}\n");
    assert_eq!(some.targets, Targets::Names(vec!["q_proj".to_owned(), "v_proj".to_owned()]));
    assert!(some.rslora && some.r == 4 && some.alpha == 8.0);

    let frozen = Method::Full { freeze: vec!["embed*".to_owned()] };
    assert_eq!(run("method: {freeze: [\"embed*\"]}\n").method, frozen);
    assert_eq!(run("method: {full: , freeze: \"embed*\"}\n").method, frozen);
    assert_eq!(run("").method, Method::Full { freeze: vec![] });
}

#[test]
fn models_by_name_and_by_shape() {
    let shape = "{family: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, \
                 intermediate_size: 128, vocab_size: 512, rope_theta: 5e5, tie_word_embeddings: true, \
                 sliding_window: null, rope_scaling: {type: llama3, factor: 8}, init: random}";
    let run = parse(&format!("model: {shape}\n")).unwrap().run;
    assert_eq!(run.init, Init::Random);
    let ModelSource::Shape(shape) = run.model else { panic!("{:?}", run.model) };
    assert_eq!(shape.family, "llama");
    assert_eq!(
        serde_json::to_string(&shape.config).unwrap(),
        "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\
         \"intermediate_size\":128,\"vocab_size\":512,\"rope_theta\":500000.0,\"tie_word_embeddings\":true,\
         \"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}}"
    );

    let run = parse("model: org/name\ninit: random\n").unwrap().run;
    assert_eq!((run.model, run.init), (ModelSource::Name("org/name".to_owned()), Init::Random));
}

#[test]
fn what_later_versions_bring_is_part_of_the_format() {
    for rest in [
        "task: reward",
        "task: classification",
        "base: fp8",
        "base: int8",
        "base: nf4",
        "optimizer: {name: sgd, momentum: 0.95}",
        "optimizer: {state: bf16}",
        "optimizer: {state: int8}",
    ] {
        run(rest);
    }
    let resolved = parse("model: tiny\ntask: reward\n").unwrap();
    let failure = resolved.unsupported("task", &["pretrain", "sft"]);
    assert_eq!(failure.code(), Code::Usage);
    assert_eq!(
        failure.to_string(),
        "error: run.yaml:2:7: `task` is `reward`, which is not supported yet\n\
         hint: supported: pretrain, sft"
    );
}

#[test]
fn the_example_of_the_manual() {
    let text = "
model: mistral-7b            # a preset, a local HF folder, or a hub id
task: reward                 # pretrain | sft | reward | seq2seq | ranking
method: {lora: {r: 16, alpha: 32, dropout: 0.1, targets: all-linear}}
base: bf16
precision: bf16
data: {train: data/train.jsonl, eval: data/eval.jsonl, format: auto, max_length: 512}
batch: {sequences: 64}
memory: {gpu: auto, host: auto, goal: fastest}
optimizer: {name: adamw, lr: 2e-5, weight_decay: 0.01, betas: [0.9, 0.999], state: fp32}
schedule: {name: cosine, warmup: 0.1, epochs: 3}
clip: 1.0
eval: {every: 500}
save: {every: 500, keep: 2, best: loss}
seed: 42
";
    let run = parse(text).unwrap().run;
    assert_eq!(run.data.train, [SourceEntry { path: "data/train.jsonl".into(), weight: None }]);
    assert_eq!(run.schedule.warmup, Span::Fraction(0.1));
    assert_eq!(run.clip, Some(1.0));
    assert_eq!(run.save.best.as_deref(), Some("loss"));
}

#[test]
fn a_host_budget_may_depend_on_the_device() {
    let size = |gib: u64| Budget::Bytes(gib << 30);
    assert_eq!(run("memory: {host: 3GiB}\n").memory.host, HostBudget { cpu: size(3), gpu: size(3) });
    assert_eq!(run("memory: {host: {cpu: 1GiB, gpu: 2GiB}}\n").memory.host, HostBudget { cpu: size(1), gpu: size(2) });
    assert_eq!(run("memory: {host: {gpu: 2GiB}}\n").memory.host, HostBudget { cpu: Budget::Auto, gpu: size(2) });
    let check = |value: &str, expected: &str| {
        let failure = parse(&format!("model: tiny\nmemory: {{host: {value}}}\n")).expect_err(value);
        assert_eq!(failure.to_string(), expected);
    };
    check(
        "{cpu: 0}",
        "error: run.yaml:2:22: `memory.host.cpu` must be a size, a percentage or `auto`, not `0`\n\
         hint: a budget must be above 0; omit it or set `auto` to use the available memory",
    );
    check("{tpu: 1GiB}", "error: run.yaml:2:17: unknown key `memory.host.tpu`\nhint: expected one of: cpu, gpu");
    // What is set above the file replaces both.
    let resolved = load(source("model: tiny\nmemory: {host: {cpu: 1GiB}}\n"), &set(&["memory.host=5GiB"])).unwrap();
    assert_eq!(resolved.run.memory.host, HostBudget::both(size(5)));
}

#[test]
fn every_key_has_help() {
    for key in reference(None).unwrap() {
        assert!(!key.help.is_empty() && !key.values.is_empty(), "{}", key.path);
    }
}
