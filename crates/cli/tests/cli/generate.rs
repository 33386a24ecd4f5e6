//! Text from models, runs and adapters.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value as Json;

use crate::support::{Refusal, Said, World, refused};

/// Everything a line of JSON says of an answer.
fn answers(said: &Said) -> Vec<Json> {
    said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The program with this on standard input.
fn piped(world: &World, args: &[&str], input: &str) -> Said {
    let mut command = world.command(args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

const GREEDY: [&str; 6] = ["--temperature", "0", "--max-new", "6", "--quiet", "--json"];

/// The same text whether prompts come alone, from a pipe, or side by side from a file.
#[test]
fn prompts_come_from_everywhere() {
    let world = World::new();
    let prompts = ["1 and 1?", "a", "7 and seven, which is much longer?"];
    let alone: Vec<Json> = prompts
        .iter()
        .flat_map(|prompt| {
            answers(&world.run(&[&["generate", "model", "--prompt", prompt], &GREEDY[..]].concat()).ok())
        })
        .collect();
    for (answer, prompt) in alone.iter().zip(prompts) {
        assert_eq!(answer["prompt"], prompt);
        assert!((1..=6).contains(&answer["tokens"].as_array().unwrap().len()), "{answer}");
        assert!(answer["tokens_per_s"].as_f64().unwrap() > 0.0 && answer["text"].is_string());
    }
    world.write("prompts.jsonl", "\"1 and 1?\"\n\n{\"prompt\": \"a\"}\n\"7 and seven, which is much longer?\"\n");
    let together = world.run(&[&["generate", "model", "--prompt-file", "prompts.jsonl"], &GREEDY[..]].concat()).ok();
    let tokens = |answers: &[Json]| answers.iter().map(|answer| answer["tokens"].clone()).collect::<Vec<_>>();
    assert_eq!(tokens(&answers(&together)), tokens(&alone));
    let said = piped(&world, &[&["generate", "model"], &GREEDY[..]].concat(), "1 and 1?\n").ok();
    assert_eq!(tokens(&answers(&said)), tokens(&alone[..1]));
    let text = world.run(&["generate", "model", "--prompt", "a", "--temperature", "0", "--max-new", "6"]).ok();
    assert!(text.stderr.contains("cache") && text.stderr.contains("measured peak"), "{}", text.stderr);
}

#[test]
fn a_seed_is_a_text() {
    let world = World::new();
    let text = |seed: &str| {
        let args =
            ["generate", "model", "--prompt", "a", "--temperature", "1.5", "--max-new", "12", "--json", "--seed"];
        answers(&world.run(&[&args[..], &[seed]].concat()).ok())[0]["tokens"].clone()
    };
    assert_eq!(text("1"), text("1"));
    assert_ne!(text("1"), text("2"));
}

/// A run with adapters is found by its folder, by its last adapter, and by its base with the adapter named; each evaluates
/// to what the run measured last, and none needs more than the budget of the base.
#[test]
fn runs_and_adapters_are_generated_from_and_evaluated() {
    let world = World::new();
    world.edit("run.yaml", "model: model", "model: model\nmethod: {lora: {r: 4, alpha: 8}}");
    world.edit("run.yaml", "lr: 1e-3", "lr: 3e-2");
    world.run(&["train", "run.yaml", "--out", "a", "--quiet"]).ok();
    let measured = world.metrics("a").iter().rev().find_map(|line| line.get("eval").cloned()).unwrap();
    let ways: [&[&str]; 3] = [&["a"], &["a/final"], &["model", "--adapter", "a"]];
    let mut texts = Vec::new();
    for way in ways {
        let data = ["--data", "train.jsonl", "--set", "data.max_length=32", "--json"];
        let said = world.run(&[&["eval"], way, &data].concat()).ok();
        let loss = said.json()["loss"].as_f64().unwrap();
        let expected = measured["loss"].as_f64().unwrap();
        assert!((loss - expected).abs() < 1e-5 * expected, "{way:?}: {loss} instead of {expected}");
        assert_eq!(said.json()["tokens"], measured["tokens"]);
        let (used, planned) = (&said.json()["host"]["used_bytes"], &said.json()["host"]["planned_bytes"]);
        assert!(used.as_u64() > Some(0) && used.as_u64() <= planned.as_u64(), "{way:?}: {used} of {planned}");
        let said = world.run(&[&["generate"], way, &["--prompt", "3 and 3?"], &GREEDY[..]].concat()).ok();
        texts.push(answers(&said)[0]["tokens"].clone());
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    let table = world.run(&["eval", "a"]).ok();
    assert!(table.stdout.contains("adapter") && table.stdout.contains("loss"), "{}", table.stdout);
    // The run file alone stands for the model before training.
    let before = world.run(&["eval", "run.yaml", "--json"]).ok().json();
    assert!(before["loss"].as_f64() > measured["loss"].as_f64(), "{before}");
}

/// The named budget and the named context are enough.
#[test]
fn what_does_not_fit_says_what_would() {
    let world = World::new();
    let args = ["generate", "model", "-i", "--device", "cpu", "--context", "1000", "--host", "1MiB"];
    let said = world.run(&args);
    assert_eq!((said.code, said.stdout.as_str()), (Some(3), ""), "{}", said.stderr);
    let named = said.stderr.split("the smallest budget that works is --host ").nth(1).expect("a budget");
    let budget = named.lines().next().unwrap();
    let with = |budget: &str| {
        let args = ["generate", "model", "--prompt", "a", "--device", "cpu", "--max-new", "3", "--host", budget];
        world.run(&args)
    };
    with(budget).ok();
    assert!(said.stderr.contains("no context fits this budget"), "{}", said.stderr);
}

#[test]
fn bad_requests_are_refused() {
    let check = |args: &[&str], code: i32, expected: &str| {
        refused(|_| {}, &Refusal { args: &[&["generate"], args].concat(), code, expected });
    };
    check(
        &["model", "--prompt", "a", "--temperature=-1"],
        2,
        "error: --temperature must be 0 (greedy) or more, found -1\n",
    );
    check(&["model", "--prompt", "a", "--top-p", "0"], 2, "error: --top-p must be above 0 and at most 1, found 0\n");
    check(
        &["mistral-7b", "--prompt", "a"],
        4,
        "error: the preset `mistral-7b` has no weights\n\
         hint: give the folder of a downloaded model, a run folder or an adapter\n",
    );
    check(
        &["model", "--prompt-file", "none.jsonl"],
        4,
        "error: cannot read none.jsonl: No such file or directory (os error 2)\n",
    );
    check(
        &["model", "--prompt", ""],
        4,
        "error: the prompt is empty, and the tokenizer begins no text with a token of its own\nhint: give a prompt of at least one character\n",
    );
    let args = ["eval", "model"];
    let expected = "error: there is no evaluation data: neither `data.eval` nor `data.eval_split` is set\n\
                    hint: give a file with --data FILE\n";
    refused(|_| {}, &Refusal { args: &args, code: 2, expected });
}
