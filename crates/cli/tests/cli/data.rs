//! What a run says about its data, mixtures, and batches in tokens.

use crate::support::World;

fn said(world: &World, args: &[&str]) -> String {
    world.run(&[&["train", "run.yaml"], args].concat()).ok().stderr
}

#[test]
fn a_run_says_what_its_rows_are_and_shows_the_first() {
    let world = World::new();
    let text = said(&world, &["--out", "a"]);
    for line in [
        "train.jsonl: detected format: prompt-response: columns prompt, response",
        "data mode: memory, because the tokenised data takes about 0.0 MiB, little enough to hold",
        "first example: ",
    ] {
        assert_eq!(text.lines().filter(|l| l.starts_with(line)).count(), 1, "{line}\n{text}");
    }
    let mut lines = text.lines().skip_while(|line| !line.starts_with("first example"));
    assert!(lines.next().is_some_and(|line| line.contains(" with loss")), "{text}");
    let example = lines.next().unwrap_or_default();
    assert!(example.contains("1 and 1?") && example.contains("⟦2"), "{example}");
    assert!(example.trim_end().ends_with('⟧'), "{example}");
    assert!(text.contains("first update: 4 sequences, "), "{text}");
    assert!(text.contains("training data: 24 sequences, "), "{text}");
    assert!(!text.contains('\x1b') && !text.contains('\r'), "nothing is coloured or redrawn");
    assert!(world.text("a/log.txt").contains(example), "the log has it too");
}

#[test]
fn a_cache_is_named_with_the_reason() {
    let world = World::new();
    let text = said(&world, &["--out", "a", "--set", "data.mode=cached", "--set", "data.cache=kept"]);
    assert!(text.contains("data mode: cached in kept, because data.mode is set"), "{text}");
    assert_eq!(world.names("kept").len(), 1);
}

#[test]
fn a_pair_is_shown_with_both_sides() {
    let world = World::new();
    let rows: String =
        (0..8).map(|i| format!("{{\"prompt\": \"q{i}\", \"chosen\": \"good\", \"rejected\": \"bad\"}}\n")).collect();
    world.write("train.jsonl", rows);
    world.edit("run.yaml", "max_length: 32", "max_length: 48");
    world.edit("run.yaml", "micro_batch_tokens: 64", "micro_batch_tokens: 192");
    let text = said(&world, &["--out", "a", "--set", "task=reward"]);
    assert!(text.contains("detected format: pairs: columns prompt, chosen, rejected"), "{text}");
    assert!(text.contains("first pair, chosen: ") && text.contains("first pair, rejected: "), "{text}");
    assert!(!text.contains('⟦'), "no token bears loss of its own: {text}");
}

/// Two files whose rows have different lengths, so that tokens tell where sequences came from.
fn mixed() -> World {
    let world = World::new();
    world.write("short.jsonl", "{\"text\": \"a\"}\n".repeat(10));
    world.write("long.jsonl", "{\"text\": \"abcdefghijk\"}\n".repeat(30));
    world
}

#[test]
fn sources_come_in_the_shares_of_their_weights() {
    let world = mixed();
    let train = "data.train=[{path: short.jsonl, weight: 3}, {path: long.jsonl, weight: 1}]";
    let mut sums = Vec::new();
    for mode in ["memory", "cached", "streaming"] {
        let mode_set = format!("data.mode={mode}");
        let text = said(
            &world,
            &["--out", mode, "--steps", "16", "--set", "batch.sequences=64", "--set", train, "--set", &mode_set],
        );
        assert!(text.contains("short.jsonl: detected format: text: column text"), "{text}");
        assert!(text.contains("long.jsonl: detected format: text: column text"), "{text}");
        let steps: Vec<_> = world.metrics(mode).into_iter().filter(|line| line.get("tokens").is_some()).collect();
        let sum = |key: &str| steps.iter().map(|step| step[key].as_u64().unwrap()).sum::<u64>();
        sums.push((sum("sequences"), sum("tokens")));
    }
    // A letter and its end, or eleven letters and an end: 1,024 sequences, a quarter of them long.
    assert_eq!(sums, [(1024, 768 * 2 + 256 * 12); 3]);
}

#[test]
fn weights_are_kept_in_the_resolved_run() {
    let world = mixed();
    let train = "data.train=[{path: short.jsonl, weight: 3}, {path: long.jsonl, weight: 1}]";
    said(&world, &["--out", "a", "--set", train]);
    world.run(&["train", "a/run.yaml", "--quiet", "--out", "b"]).ok();
    assert_eq!(world.losses("a"), world.losses("b"));
}

#[test]
fn a_batch_in_tokens_takes_what_fits() {
    let world = World::new();
    let text = said(&world, &["--out", "a", "--set", "batch={tokens: 150}", "--set", "schedule={epochs: 2}"]);
    assert!(text.contains("at most 150 tokens, 4 sequences or more"), "{text}");
    let steps: Vec<_> = world.metrics("a").into_iter().filter(|line| line.get("tokens").is_some()).collect();
    let of = |key: &str| steps.iter().map(|step| step[key].as_u64().unwrap()).collect::<Vec<_>>();
    let longest = 32;
    assert!(of("tokens").iter().all(|&tokens| tokens <= 150 && tokens > 150 - longest), "{:?}", of("tokens"));
    assert!(of("sequences").iter().all(|&sequences| sequences >= 4), "{:?}", of("sequences"));
    // Two epochs of 24 rows, give or take what one update has.
    let sequences: u64 = of("sequences").iter().sum();
    assert!(sequences.abs_diff(48) <= of("sequences")[0], "{:?}", of("sequences"));
    // The same updates under another plan.
    let args = ["--out", "b", "--set", "batch={tokens: 150}", "--set", "plan.micro_batch_tokens=32"];
    said(&world, &[&args[..], &["--set", "schedule={epochs: 2}"]].concat());
    let other: Vec<_> = world.metrics("b").into_iter().filter(|line| line.get("tokens").is_some()).collect();
    assert_eq!(other.iter().map(|step| step["sequences"].as_u64().unwrap()).collect::<Vec<_>>(), of("sequences"));
}

#[test]
fn a_batch_in_tokens_of_pairs() {
    let world = World::new();
    let rows: String =
        (0..12).map(|i| format!("{{\"prompt\": \"q{i}\", \"chosen\": \"good\", \"rejected\": \"bad\"}}\n")).collect();
    world.write("train.jsonl", rows);
    world.edit("run.yaml", "max_length: 32", "max_length: 48");
    world.edit("run.yaml", "micro_batch_tokens: 64", "micro_batch_tokens: 96");
    let text = said(&world, &["--out", "a", "--set", "task=reward", "--set", "batch={tokens: 200}"]);
    assert!(text.contains("at most 200 tokens, 4 sequences or more"), "{text}");
    for step in world.metrics("a").into_iter().filter(|line| line.get("tokens").is_some()) {
        assert!(step["tokens"].as_u64().unwrap() <= 200 && step["sequences"].as_u64().unwrap() % 2 == 0, "{step}");
    }
}

#[test]
fn held_out_rows_of_a_mixture_are_those_it_is_not_trained_on() {
    let world = World::new();
    // Every row has a length of its own, so that sums tell whether one is in both or in neither.
    let row = |length: usize| format!("{{\"text\": \"{}\"}}\n", "a".repeat(length));
    world.write("one.jsonl", (1..13).map(row).collect::<String>());
    world.write("two.jsonl", (13..25).map(row).collect::<String>());
    let train = "train: [{path: one.jsonl, weight: 1}, {path: two.jsonl, weight: 2}]";
    for mode in ["memory", "cached", "streaming"] {
        let data = format!("data={{{train}, eval_split: 0.25, max_length: 32, mode: {mode}}}");
        let epochs = ["--set", "schedule={epochs: 1}"];
        let text = said(&world, &[&["--out", mode, "--set", &data][..], &epochs].concat());
        let kept = figures(&text, "training data: ");
        let evals: Vec<_> = world.metrics(mode).into_iter().filter(|line| line.get("eval").is_some()).collect();
        let held = |key: &str| evals[0]["eval"][key].as_u64().unwrap();
        assert_eq!(kept[0] + held("sequences"), 24, "{mode}: {text}");
        // A text of n letters and its end has n tokens with loss.
        assert_eq!(kept[2] + held("tokens"), (1..25).sum::<u64>(), "{mode}: {text}");
    }
}

/// The numbers of the line that begins so.
fn figures(text: &str, begin: &str) -> Vec<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(begin)).unwrap_or_else(|| panic!("{begin}: {text}"));
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// A table with names of its own, divided; the share is exact, and said.
#[test]
fn a_table_is_trained_by_its_own_names() {
    let world = World::new();
    let rows: String = (0..40).map(|i| format!("\"question, {i}\",{}\n\n", "a".repeat(1 + i % 9))).collect();
    world.write("rows.csv", format!("frage,antwort\n{rows}"));
    for mode in ["memory", "cached", "streaming"] {
        let columns = "columns: {prompt: frage, response: antwort}";
        let data = format!("data={{train: rows.csv, {columns}, eval_split: 0.3, max_length: 64, mode: {mode}}}");
        let set = ["--set", "task=sft", "--set", &data, "--set", "schedule={epochs: 1}"];
        let text = said(&world, &[&["--out", mode][..], &set].concat());
        assert!(text.contains("prompt-response: columns prompt, response"), "{text}");
        assert!(text.contains("training data: 28 sequences") && text.contains("28 rows, 12 more held out"), "{text}");
        assert!(text.contains("evaluation data: "), "{text}");
    }
    let wrong = "data={train: rows.csv, columns: {prompt: Frage}, max_length: 64}";
    let refused = world.run(&["train", "run.yaml", "--out", "x", "--set", "task=sft", "--set", wrong]);
    let text = refused.stderr;
    assert_eq!(refused.code, Some(2), "{text}");
    assert!(text.contains("`Frage`") && text.contains("`antwort`, `frage`"), "{text}");
}
