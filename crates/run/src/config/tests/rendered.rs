//! The way back to YAML.

use super::*;

#[test]
fn resolved_yaml_shows_origins() {
    let overrides = Overrides {
        environment: vec![("PLIMSOLL_OUT".to_owned(), "runs/a: b".to_owned())],
        set: vec!["plan.recompute.gate_up=12".to_owned()],
        flags: vec![Flag { name: "--steps", path: "schedule.steps", value: "7".to_owned() }],
    };
    let resolved = load(source("model: tiny\nmethod: {lora: {r: 8}}\nclip: none\n"), &overrides).unwrap();
    assert_eq!(
        resolved.to_yaml(),
        "\
model: tiny              # run.yaml:1
init: auto               # default
task: sft                # default
reward:
  centring: 0.0          # default
  margin: false          # default
ranking:
  loss: listmle          # default
  weight: 1.0            # default
  lm_weight: 0.5         # default
dpo:
  beta: 0.1              # default
  label_smoothing: 0.0   # default
orpo:
  lambda: 0.1            # default
train_padding: false     # default
method:
  lora:
    r: 8                 # run.yaml:2
    alpha: 32            # default
    dropout: 0.0         # default
    targets: all-linear  # default
    rslora: false        # default
precision: auto          # default
data:
  format: auto           # default
  max_length: 1024       # default
  overlong: error        # default
  shuffle: true          # default
  template: auto         # default
  mode: auto             # default
  buffer: auto           # default
  bad_rows: 0.01         # default
batch:
  sequences: 16          # default
memory:
  gpu: auto              # default
  host: auto             # default
  goal: fastest          # default
optimizer:
  name: adamw            # default
  lr: 2e-5               # default
  weight_decay: 0.01     # default
  decay_norms: false     # default
  state: fp32            # default
schedule:
  name: cosine           # default
  warmup: 0              # default
  steps: 7               # --steps
  final: 0.0             # default
clip: none               # run.yaml:3
eval:
  bleu_rows: 64          # default
save:
  minutes: 30            # default
  keep: 2                # default
log:
  wandb: false           # default
guard:
  action: stop           # default
  limit: 10              # default
  spike: none            # default
seed: 42                 # default
out: \"runs/a: b\"         # environment PLIMSOLL_OUT
device: auto             # default
mode: compiled           # default
plan:
  recompute:
    gate_up: 12          # --set
  keep: exact            # default
  save: auto             # default
"
    );
}

#[test]
fn resolved_yaml_reads_back_as_the_same_run() {
    for text in [
        "model: tiny\n",
        "model: \"true\"\nname: \"7\"\nout: \"a # b\"\ndevice: cuda:0\n",
        "model: C:\\models\\é\ndata: {train: [a b.jsonl, \"12\"], eval_split: 0.1}\nclip: none\n",
        "model: tiny\ndata: {train: [{path: \"a b\", weight: 2}, {weight: 0.5, path: c/*.jsonl}]}\n",
        "model: tiny\nmethod: {full: {}, freeze: [\"*.embed\", \"[0-9]\"]}\nmemory: {gpu: 80%, host: 16GB}\n",
        "model: tiny\nplan: {recompute: {}, loss_chunks: 4, update_in_backward: true, save: beside}\nschedule: {warmup: 100, steps: 1e6}\n",
        "model: tiny\nplan: {recompute: {norm: 3, \"odd name\": 0}}\nbatch: {tokens: 524_288}\neval:\n",
        include_str!("../../quickstart.yaml"),
    ] {
        let first = parse(text).unwrap();
        let rendered = first.to_yaml();
        let second = parse(&rendered).unwrap_or_else(|failure| panic!("{failure}\n{rendered}"));
        assert_eq!(first.run, second.run, "{rendered}");
    }
}
