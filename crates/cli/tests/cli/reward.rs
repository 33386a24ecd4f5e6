//! Reward models, from rows to folders.

use crate::support::{SHAPE, World, refused_set};

const PAIRS_RUN: &str = "\
model: model
task: reward
data: {train: train.jsonl, eval: train.jsonl, max_length: 32, overlong: truncate}
batch: {sequences: 4}
optimizer: {lr: 3e-3}
schedule: {steps: 30, name: constant}
eval: {every: 15}
plan: {micro_batch_tokens: 64}
";

/// The right answer beside a wrong one; then a pair that says nothing, and one with too long an answer.
fn rows() -> String {
    let pair = |prompt: &str, chosen: &str, rejected: &str| {
        format!("{{\"prompt\": \"{prompt}\", \"chosen\": \"{chosen}\", \"rejected\": \"{rejected}\"}}\n")
    };
    let sums = (1..=12).map(|i| pair(&format!("{i} and {i}?"), &format!("{} yes", i + i), &format!("{i} no")));
    sums.chain([pair("1?", "2", "2"), pair("2?", "3", &"3".repeat(60))]).collect()
}

fn world() -> World {
    let world = World::new();
    world.write("run.yaml", PAIRS_RUN);
    world.write("train.jsonl", rows());
    world
}

#[test]
fn pairs_are_learnt_and_counted() {
    let world = world();
    let said = world.run(&["train", "run.yaml", "--out", "a"]).ok();
    let log = world.text("a/log.txt");
    for line in [
        "training data: 24 sequences, ",
        "; of 14 rows, 1 skipped: too long or without an answer, \
         1 skipped: both answers are identical",
        "the model's files have no score head; a new one is initialised from the seed",
    ] {
        assert!(said.stderr.contains(line) && log.contains(line), "{line}: {}", said.stderr);
    }
    assert!(said.stderr.contains("loss  accuracy    margin"), "{}", said.stderr);
    assert!(said.stdout.contains("evaluation accuracy 1.0000"), "{}", said.stdout);

    let metrics = world.metrics("a");
    let steps: Vec<_> = metrics.iter().filter(|m| m.get("loss").is_some()).collect();
    assert!(steps.iter().all(|m| m["accuracy"].is_f64() && m["margin"].is_f64() && m["sequences"] == 4));
    assert!((steps[0]["loss"].as_f64().unwrap() - std::f64::consts::LN_2).abs() < 0.1);
    let evals: Vec<_> = metrics.iter().filter_map(|m| m.get("eval")).collect();
    assert_eq!((evals.len(), &evals[0]["sequences"]), (3, &24.into()));
    assert!(evals[2]["margin"].as_f64() > evals[0]["margin"].as_f64());
    assert_eq!(evals[2]["accuracy"], 1.0);

    let config = world.json("a/final/config.json");
    assert_eq!(config["architectures"][0], "LlamaForSequenceClassification");
}

/// Training goes on from a folder that has a head, and adapters are saved with theirs.
#[test]
fn heads_are_kept() {
    let world = world();
    world.run(&["train", "run.yaml", "--out", "a", "--steps", "3", "--quiet"]).ok();
    let said = world.run(&["train", "run.yaml", "--out", "b", "--steps", "1", "--set", "model=a/final"]).ok();
    assert!(!said.stderr.contains("no score head"), "{}", said.stderr);
    world.run(&["train", "run.yaml", "--out", "c", "--steps", "2", "--quiet", "--set", "method=lora"]).ok();
    let adapter = world.json("c/final/adapter_config.json");
    assert_eq!((&adapter["task_type"], &adapter["modules_to_save"]), (&"SEQ_CLS".into(), &["score"].as_slice().into()));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = world();
    refused_set(
        &world,
        "batch.sequences=5",
        2,
        "error: --set batch.sequences: `batch.sequences` is 5, but `task: reward` takes sequences in groups of 2\n\
         hint: set batch.sequences to 6\n",
    );
    refused_set(
        &world,
        "plan.micro_batch_tokens=48",
        2,
        "error: --set plan.micro_batch_tokens: `plan.micro_batch_tokens` is 48, but a group of 2 sequences may have 64 tokens (data.max_length)\n",
    );
    refused_set(
        &world,
        "eval.samples=3",
        2,
        "error: --set eval.samples: `eval.samples` generates answers, but a model for this task produces no text\n\
         hint: remove eval.samples\n",
    );
    refused_set(
        &world,
        "task=sft",
        4,
        "error: train.jsonl, row 1: the rows are pairs of answers, which this task has no use for\n\
         hint: use `task: reward`, `dpo` or `orpo`, or give the columns of another shape\n",
    );
}

#[test]
fn bench_and_plan() {
    let run = format!("{SHAPE}task: reward\ndata: {{max_length: 32}}\nbatch: {{sequences: 6}}\n");
    let world = World::bare(&run);
    let result = world.run(&["bench", "run.yaml", "--json", "--steps", "2"]).ok().json();
    assert!((result["loss_first"].as_f64().unwrap() - std::f64::consts::LN_2).abs() < 0.2, "{result}");
    let plan = world.run(&["plan", "run.yaml", "--json", "--goal", "lowest"]).ok().json();
    assert_eq!((&plan["micro_batch_tokens"], &plan["accumulation"]), (&64.into(), &3.into()));
}

/// Whoever scores has to write conversations as they were written in training.
#[test]
fn the_template_that_was_used_is_exported() {
    let world = world();
    let own = world.json("model/tokenizer_config.json")["chat_template"].as_str().unwrap().to_owned();
    let template = |out: &str| {
        let file = world.path(out).join("final/chat_template.jinja");
        let file = file.exists().then(|| world.text(&format!("{out}/final/chat_template.jinja")));
        let config = world.json(&format!("{out}/final/tokenizer_config.json"));
        file.or(config["chat_template"].as_str().map(str::to_owned))
    };
    let train = |out: &str, settings: &[&str]| {
        let set = settings.iter().flat_map(|setting| ["--set", setting]);
        let args = ["train", "run.yaml", "--quiet", "--steps", "1", "--out", out].into_iter().chain(set);
        world.run(&args.collect::<Vec<_>>()).ok();
        template(out)
    };
    assert_eq!(train("own", &[]), Some(own.clone()));
    let chatml =
        train("named", &["data.template=chatml", "data.max_length=96", "plan.micro_batch_tokens=192"]).unwrap();
    assert!(chatml.contains("<|im_start|>") && chatml != own, "{chatml}");
    // A tokenizer without one: plain texts go without, conversations do not.
    let mut config = world.json("model/tokenizer_config.json");
    config.as_object_mut().unwrap().remove("chat_template");
    world.write("model/tokenizer_config.json", config.to_string());
    assert_eq!(train("plain", &[]), None);
    let turns = |answer: &str| {
        format!("[{{\"role\": \"user\", \"content\": \"1?\"}}, {{\"role\": \"assistant\", \"content\": \"{answer}\"}}]")
    };
    let row = format!("{{\"chosen\": {}, \"rejected\": {}}}\n", turns("2"), turns("3"));
    world.write("train.jsonl", row.repeat(8));
    assert_eq!(train("turns", &["data.max_length=96", "plan.micro_batch_tokens=192"]), Some(chatml));
}
