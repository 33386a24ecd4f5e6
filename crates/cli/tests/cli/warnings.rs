//! What is done as asked, though it was hardly meant so.

use crate::support::World;

/// The warnings of a run, which are there even when it is quiet.
#[track_caller]
fn check(settings: &[&str], expected: &[&str]) {
    let world = World::new();
    let set: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let args = [&["train", "run.yaml", "--quiet", "--out", "out"], &set[..]].concat();
    let said = world.run(&args).ok();
    let warnings: Vec<&str> = said.stderr.lines().filter_map(|line| line.strip_prefix("warning: ")).collect();
    assert_eq!(warnings, expected, "{settings:?}");
    let log = world.text("out/log.txt");
    assert!(expected.iter().all(|warning| log.contains(&format!("warning: {warning}\n"))), "{log}");
}

#[test]
fn a_run_that_makes_sense_has_none() {
    check(&[], &[]);
}

#[test]
fn warm_up_beyond_the_run() {
    check(&["schedule.warmup=4"], &[]);
    check(
        &["schedule.warmup=100"],
        &["`schedule.warmup` takes 100 updates, but the run has 4: the learning rate never reaches `optimizer.lr`"],
    );
}

#[test]
fn evaluation_without_data() {
    check(
        &["data.eval=null"],
        &["`eval.every` has no effect without evaluation data; set `data.eval` or `data.eval_split`"],
    );
}

#[test]
fn sequences_longer_than_the_model_s() {
    let expected = "`data.max_length` is 64, but the model was made for sequences of at most 48 tokens";
    let world = World::new();
    let mut config = world.json("model/config.json");
    config["max_position_embeddings"] = 48.into();
    world.write("model/config.json", config.to_string());
    for command in ["plan", "bench"] {
        let said = world.run(&[command, "run.yaml", "--steps", "1", "--set", "data.max_length=64"]).ok();
        assert!(said.stderr.contains(&format!("warning: {expected}\n")), "{}", said.stderr);
    }
}

#[test]
fn batches_and_datasets() {
    check(
        &["batch.sequences=32"],
        &[
            "`batch.sequences` is 32, but the training data has 24 sequences: every update has some of them more than once",
        ],
    );
    check(
        &["batch.sequences=24", "schedule={epochs: 1}", "eval.every=1"],
        &["the run has one update, because all 24 sequences fit into it; raise `schedule.epochs` or lower the batch"],
    );
    check(&["batch.sequences=24", "schedule={epochs: 2}", "eval.every=1"], &[]);
}

#[test]
fn settings_of_other_tasks_and_optimizers() {
    check(
        &["reward.centring=0.1", "dpo.beta=0.1", "data.classes=2", "eval.bleu_rows=3", "optimizer.muon.nesterov=false"],
        &[
            "`reward.centring` has no effect: it is a setting of `task: reward`, and the task is sft",
            "`data.classes` has no effect: it is a setting of `task: classification`, and the task is sft",
            "`optimizer.muon.nesterov` has no effect: it is a setting of `optimizer: muon`, and the optimizer is adamw",
            "`eval.bleu_rows` has no effect: it is a setting of `task: seq2seq`, and the task is sft",
        ],
    );
}
