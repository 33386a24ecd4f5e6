//! Tasks that learn a rule from rows, from the run file to the exported folder.

use serde_json::{Value as Json, json};

use crate::support::{Refusal, World, refused_in, refused_set};

/// Trains on `train.jsonl` and evaluates on rows that were not seen.
fn run(task: &str, more: &str) -> String {
    format!(
        "model: model\ntask: {task}\ndata: {{train: train.jsonl, eval: eval.jsonl, max_length: 48, {more}}}\n\
         batch: {{sequences: 16}}\noptimizer: {{lr: 5e-3}}\nschedule: {{steps: 60, name: constant}}\n\
         eval: {{every: 30}}\nplan: {{micro_batch_tokens: 768}}\n"
    )
}

fn lines(rows: impl Iterator<Item = Json>) -> String {
    rows.map(|row| format!("{row}\n")).collect()
}

/// Rows of a rule; those for evaluation are others.
fn world(run: &str, row: impl Fn(usize) -> Json) -> World {
    let world = World::new();
    world.write("run.yaml", run);
    world.write("train.jsonl", lines((0..160).filter(|i| i % 5 != 4).map(&row)));
    world.write("eval.jsonl", lines((0..160).filter(|i| i % 5 == 4).map(&row)));
    world
}

#[track_caller]
fn last_eval(world: &World, run: &str) -> Json {
    let metrics = world.metrics(run);
    metrics.iter().rev().find_map(|line| line.get("eval")).expect("evaluated").clone()
}

#[track_caller]
fn above(world: &World, run: &str, metric: &str, threshold: f64) {
    let eval = last_eval(world, run);
    assert!(eval[metric].as_f64().is_some_and(|value| value > threshold), "{metric}: {eval}");
}

/// Two digits in words that differ from row to row.
fn digits(i: usize) -> (usize, usize) {
    ((i * 7 + 3) % 10, (i * 3 + i / 10) % 10)
}

#[test]
fn classes_are_learnt_and_named() {
    // The class is that of the last letter.
    let row = |i: usize| {
        let (a, b) = digits(i);
        let (letter, class) = [("x", "ex"), ("y", "why"), ("z", "zed")][i % 3];
        json!({"text": format!("{a}{b} is {letter}"), "label": class})
    };
    let world = world(&run("classification", "classes: [ex, why, zed]"), row);
    world.run(&["train", "run.yaml", "--out", "a", "--quiet"]).ok();
    above(&world, "a", "accuracy", 0.95);
    let config = world.json("a/final/config.json");
    assert_eq!(config["architectures"][0], "LlamaForSequenceClassification");
    assert_eq!((&config["id2label"]["2"], &config["label2id"]["why"]), (&"zed".into(), &1.into()));

    world.run(&["train", "run.yaml", "--out", "b", "--quiet", "--steps", "2", "--set", "method=lora"]).ok();
    let adapter = world.json("b/final/adapter_config.json");
    assert_eq!((&adapter["task_type"], &adapter["modules_to_save"]), (&"SEQ_CLS".into(), &["score"].as_slice().into()));
}

/// The chosen answer is the one that says yes, by a margin.
fn preference(i: usize) -> Json {
    let (a, b) = digits(i);
    let prompt = format!("{a} or {b}? ");
    json!({"prompt": prompt, "chosen": format!("yes {a}"), "rejected": format!("no {b}"), "margin": 0.5})
}

#[test]
fn rewards_keep_their_margin() {
    let world = world(&format!("{}reward: {{margin: true, centring: 0.01}}\n", run("reward", "")), preference);
    world.run(&["train", "run.yaml", "--out", "a", "--quiet"]).ok();
    above(&world, "a", "accuracy", 0.95);
    let eval = last_eval(&world, "a");
    let reward = |name: &str| eval[name].as_f64().expect("reported");
    assert!((reward("reward_chosen") - reward("reward_rejected") - reward("margin")).abs() < 1e-6, "{eval}");
    world.write("train.jsonl", r#"{"prompt": "a", "chosen": "b", "rejected": "c", "margin": -1}"#);
    refused_set(
        &world,
        "data.bad_rows=0",
        4,
        "error: train.jsonl, row 1: `margin` is -1\nhint: a margin is a number of at least 0; correct the row, or set \
         `reward.margin: false`\n",
    );
}

#[test]
fn preferences_are_learnt_by_likelihood() {
    let world = world(&run("dpo", ""), preference);
    let lora = ["--set", "method={lora: {r: 8, alpha: 16}}"];
    world.run(&[&["train", "run.yaml", "--out", "a", "--quiet"], &lora[..]].concat()).ok();
    above(&world, "a", "accuracy", 0.95);
    world.run(&["train", "run.yaml", "--out", "b", "--quiet", "--set", "task=orpo"]).ok();
    above(&world, "b", "accuracy", 0.95);
    // Everything is trained: the model is asked about all answers before that.
    world.run(&["train", "run.yaml", "--out", "c", "--quiet"]).ok();
    above(&world, "c", "accuracy", 0.95);
    assert!(world.path("c/reference.bin").exists());
    refused_set(
        &world,
        "data.mode=streaming",
        2,
        "error: --set data.mode: `task: dpo` that trains the model itself asks it about all data first\n\
         hint: set `data.mode: cached` or `memory`, or train adapters, as in method: {lora: {r: 16}}\n",
    );
}

#[test]
fn candidates_are_ranked_and_a_second_run_goes_on() {
    // The relevance of a candidate is the digit it begins with.
    let row = |i: usize| {
        let (a, b) = digits(i);
        let c = (a + b + i) % 10;
        let turns = [a, b, c]
            .map(|d| [json!({"from": "human", "value": "?"}), json!({"from": "gpt", "value": format!("{d}")})]);
        json!({"conversations": turns.concat(), "auxiliary_labels": [a, b, c]})
    };
    let more = "template: chatml";
    let world = world(&run("ranking", more).replace("max_length: 48", "max_length: 256").replace("768", "4096"), row);
    let lora = ["--set", "method={lora: {r: 8, alpha: 16}}"];
    world.run(&[&["train", "run.yaml", "--out", "a", "--quiet", "--steps", "80"], &lora[..]].concat()).ok();
    above(&world, "a", "ndcg", 0.95);
    let ndcg = last_eval(&world, "a")["ndcg"].clone();
    let second = ["--set", "init_from=a/final", "--steps", "1", "--set", "optimizer.lr=1e-6"];
    world.run(&[&["train", "run.yaml", "--out", "b", "--quiet"], &lora[..], &second[..]].concat()).ok();
    let before = world.metrics("b").iter().find_map(|line| line.get("eval").cloned()).expect("evaluated");
    assert_eq!(before["ndcg"], ndcg, "adapters and head are those of the first run");
}

#[test]
fn pretraining_reports_bits_per_byte() {
    let world = world(&run("pretrain", ""), |i| json!({"text": format!("abcd{}", "efgh".repeat(i % 7))}));
    world.run(&["train", "run.yaml", "--out", "a", "--quiet"]).ok();
    let eval = last_eval(&world, "a");
    let bits = eval["bits_per_byte"].as_f64().expect("reported");
    // A token is a byte here, or an end without one, so the mean over bytes is near the loss in bits.
    let loss = eval["loss"].as_f64().expect("a loss") / std::f64::consts::LN_2;
    assert!(bits > 0.0 && (bits - loss).abs() < 0.5, "{eval}");
}

/// A T5 that says what it reads backwards, small enough for a test.
fn sourced_world() -> World {
    let row = |i: usize| {
        let (a, b) = digits(i);
        json!({"prompt": format!("turn {a} {b}"), "response": format!("{b} then {a} it is")})
    };
    let world = world(&run("seq2seq", "tokenizer: model"), row);
    world.edit(
        "run.yaml",
        "model: model\n",
        "model: {family: t5, d_model: 32, d_kv: 8, d_ff: 64, num_layers: 1, num_decoder_layers: 2, num_heads: 4, \
         vocab_size: 260, dropout_rate: 0.0, decoder_start_token_id: 0, init: random}\n",
    );
    world.edit("run.yaml", "max_length: 48", "max_length: 16");
    world.edit("run.yaml", "lr: 5e-3", "lr: 1e-2");
    world
}

/// What a run measured last, `eval` measures on its folder, on its checkpoint and with adapters; each also says it.
#[test]
fn sources_are_answered_and_compared() {
    let world = sourced_world();
    let best = ["--set", "save={every: 30, best: bleu}", "--set", "eval.bleu_rows=20", "--set", "eval.samples=2"];
    let said = world.run(&[&["train", "run.yaml", "--out", "a", "--json"], &best[..]].concat()).ok();
    let measured = last_eval(&world, "a");
    let bleu = measured["bleu"].as_f64().expect("reported");
    assert!((0.0..=100.0).contains(&bleu) && bleu > 1.0, "{measured}");
    assert_eq!(measured["bleu_rows"], 20);
    let evals: Vec<Json> = world.metrics("a").iter().filter_map(|line| line.get("eval").cloned()).collect();
    let highest = evals[1..].iter().filter_map(|eval| eval["bleu"].as_f64()).fold(0.0, f64::max);
    assert_eq!(said.json()["best"]["bleu"].as_f64(), Some(highest), "{}", said.stdout);
    assert_eq!(said.json()["samples"], 2);
    let host = &said.json()["host"];
    assert!(host["used_bytes"].as_u64() <= host["planned_bytes"].as_u64(), "{host}");

    for folder in ["a", "a/final", "a/checkpoints/step-30"] {
        let data = ["--data", "eval.jsonl", "--set", "data.max_length=16", "--set", "eval.bleu_rows=20"];
        let found = world.run(&[&["eval", folder, "--task", "seq2seq", "--json"], &data[..]].concat()).ok().json();
        let expected = if folder.ends_with("30") { &evals[1] } else { &measured };
        assert_eq!((&found["metrics"]["bleu"], &found["bleu_rows"]), (&expected["bleu"], &20.into()), "{folder}");
    }
    let table = world.run(&["eval", "a"]).ok().stdout;
    assert!(table.contains("bleu") && table.contains("rows with bleu"), "{table}");

    let prompt = ["--prompt", "turn 3 4", "--temperature", "0", "--json", "--quiet"];
    let answer = world.run(&[&["generate", "a"], &prompt[..]].concat()).ok().json();
    assert_eq!(answer["prompt"], "turn 3 4");
    assert!(answer["text"].as_str().is_some_and(|text| !text.starts_with("turn")), "{answer}");
    let short = world.run(&[&["generate", "a/final", "--max-new", "3"], &prompt[..]].concat()).ok().json();
    let tokens = |answer: &Json| answer["tokens"].as_array().expect("tokens").clone();
    assert_eq!(tokens(&short), tokens(&answer)[..tokens(&short).len()]);
    assert!(tokens(&short).len() <= 3);
}

#[test]
fn adapters_beside_an_encoder_answer_too() {
    let world = sourced_world();
    let lora = ["--set", "method={lora: {r: 4, alpha: 8}}", "--steps", "4"];
    world.run(&[&["train", "run.yaml", "--out", "a", "--quiet"], &lora[..]].concat()).ok();
    let measured = last_eval(&world, "a");
    let found = world.run(&["eval", "a", "--json"]).ok().json();
    assert_eq!(found["metrics"]["bleu"], measured["bleu"]);
    assert_eq!((&found["bleu_rows"], &measured["bleu_rows"]), (&32.into(), &32.into()), "all there are");
    let prompt = ["--prompt", "turn 3 4", "--temperature", "0", "--json", "--quiet", "--max-new", "5"];
    let ways: [&[&str]; 2] = [&["a"], &["a/base", "--adapter", "a/final"]];
    let texts = ways.map(|way| world.run(&[&["generate"], way, &prompt[..]].concat()).ok().json()["tokens"].clone());
    assert_eq!(texts[0], texts[1]);
    assert!(texts[0].as_array().is_some_and(|tokens| !tokens.is_empty()));
}

#[test]
fn bleu_needs_texts_to_compare() {
    let check = |world: &World, more: &[&str], expected: &str| {
        let args = [&["train", "run.yaml", "--out", "out", "--set", "save.best=bleu"], more].concat();
        refused_in(world, &Refusal { args: &args, code: 2, expected });
    };
    check(
        &World::new(),
        &[],
        "error: --set save.best: `save.best` is bleu, which `task: sft` does not report\n\
         hint: set save.best to loss, or use `task: seq2seq`\n",
    );
    check(
        &sourced_world(),
        &["--set", "eval.bleu_rows=0"],
        "error: --set save.best: `save.best` is bleu, but `eval.bleu_rows` is 0, so none is computed\n\
         hint: set eval.bleu_rows to the number of held-out rows to compare, or save.best to loss\n",
    );
}
