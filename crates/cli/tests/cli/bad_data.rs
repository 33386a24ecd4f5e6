//! Data that cannot be trained on: exit code 4, with the file and the row.

use crate::support::{Refusal, World, refused, refused_set, rows};

const ARGS: [&str; 4] = ["train", "run.yaml", "--out", "out"];

/// The training file holds `text`.
#[track_caller]
fn check(text: &str, expected: &str) {
    refused(|world| world.write("train.jsonl", text), &Refusal { args: &ARGS, code: 4, expected });
}

/// Three good lines before a bad one.
fn fourth(line: &str) -> String {
    let good: String = rows().lines().take(3).map(|line| format!("{line}\n")).collect();
    format!("{good}{line}\n")
}

#[test]
fn missing_file() {
    refused(
        |world| std::fs::remove_file(world.path("train.jsonl")).unwrap(),
        &Refusal {
            args: &ARGS,
            code: 4,
            expected: "error: cannot read train.jsonl: No such file or directory (os error 2)\n\
                hint: check the path under `data:`\n",
        },
    );
}

#[test]
fn no_file_named() {
    refused(
        |world| world.write("run.yaml", "model: model\n"),
        &Refusal {
            args: &ARGS,
            code: 2,
            expected: "error: `data.train` is missing\n\
                hint: set it to the file or files to train on, as in data: {train: train.jsonl}\n",
        },
    );
}

#[test]
fn unknown_kind_of_file() {
    refused(
        |world| {
            world.write("train.xls", "prompt,response\n");
            world.edit("run.yaml", "train.jsonl", "train.xls");
        },
        &Refusal {
            args: &ARGS,
            code: 4,
            expected: "error: train.xls: the extension does not say what the file holds\n\
                hint: name it .jsonl (one JSON object per line), .json (a list of objects), .csv, .tsv, .txt, .parquet or .arrow; \
                all but the last two may end in .gz or .zst\n",
        },
    );
}

#[test]
fn no_rows() {
    for text in ["", "\n\n"] {
        check(text, "error: no rows in train.jsonl\nhint: a dataset needs at least one row\n");
    }
}

#[test]
fn row_without_a_known_column() {
    check(
        "{\"a\": 1}\n",
        "error: train.jsonl, row 1: no column for training text; the row has `a`\n\
         hint: accepted are `text`; `prompt` with `response` or `completion`; `instruction` (and `input`) with \
         `output`; `question` with `answer`; `messages` (a list of {role, content}); `conversations` (a list of \
         {from, value}); for `task: reward`, `prompt` with `chosen` and `rejected`\n",
    );
    check(
        &fourth("{\"prompt\": \"x\"}"),
        "error: train.jsonl, row 4: no column for format `prompt-response`; the row has `prompt`\n\
         hint: accepted are `prompt` with `response` or `completion`, `instruction` (and `input`) with `output`, \
         `question` with `answer`\n",
    );
}

#[test]
fn line_that_is_not_json() {
    check(
        &fourth("{\"prompt\": \"x\""),
        "error: train.jsonl, row 4: not valid JSON: EOF while parsing an object (column 14)\n\
         hint: each row must be one complete JSON object\n",
    );
    check(
        &fourth("[1, 2]"),
        "error: train.jsonl, row 4: expected a JSON object, found a list\n\
         hint: write each row as {\"text\": …} or another accepted shape\n",
    );
}

#[test]
fn sequence_longer_than_max_length() {
    let long = "x".repeat(40);
    check(
        &fourth(&format!("{{\"prompt\": \"{long}\", \"response\": \"1\"}}")),
        "error: train.jsonl, row 4: 44 tokens, more than max_length = 32\n\
         hint: raise data.max_length, or set data.overlong to `truncate` or `skip`\n",
    );
    // And the hint helps.
    let world = World::new();
    world.write("train.jsonl", fourth(&format!("{{\"prompt\": \"{long}\", \"response\": \"1\"}}")));
    for way in ["truncate", "skip"] {
        let setting = format!("data.overlong={way}");
        world.run(&["train", "run.yaml", "--quiet", "--out", way, "--set", &setting]).ok();
    }
}

#[test]
fn tokenizer_missing() {
    refused(
        |world| std::fs::remove_file(world.path("model/tokenizer.json")).unwrap(),
        &Refusal {
            args: &ARGS,
            code: 4,
            expected: "error: model/tokenizer.json is missing\n\
                hint: a model's folder holds its tokenizer: download it together with the weights, or set data.tokenizer to a \
                folder that has one\n",
        },
    );
}

#[test]
fn tokenizer_larger_than_the_vocabulary() {
    refused(
        |world| world.edit("model/config.json", "\"vocab_size\": 260", "\"vocab_size\": 200"),
        &Refusal {
            args: &ARGS,
            code: 4,
            expected: "error: the tokenizer has 260 tokens, the model's vocabulary only 200\n\
                hint: use the tokenizer that came with the model, or set data.tokenizer to its folder\n",
        },
    );
}

/// Nothing is downloaded, and a name of the hub or of the web says how its data comes here.
#[test]
fn data_that_is_elsewhere() {
    let world = World::new();
    let check = |path: &str, hint: &str| {
        let setting = format!("data.train={path}");
        let expected = format!("error: cannot read {path}: No such file or directory (os error 2)\nhint: {hint}\n");
        refused_set(&world, &setting, 4, &expected);
    };
    check("gone.jsonl", "check the path under `data:`");
    check("https://example.org/rows.jsonl", "nothing is downloaded; fetch the file first and name it here");
    check(
        "org/rows",
        "check the path under `data:`; a dataset of the hub is not downloaded, `hf download --repo-type dataset org/rows \
         --local-dir DIR` does that",
    );
}

#[test]
fn shares_that_leave_nothing() {
    let world = World::new();
    world.edit("run.yaml", "eval: train.jsonl", "eval_split: 0.99");
    for mode in ["memory", "cached"] {
        let setting = format!("data.mode={mode}");
        let expected = "error: run.yaml:2:40: no row is left to train on: `data.eval_split` holds out all of the 24\n\
            hint: lower data.eval_split, or give the evaluation rows in a file of their own with data.eval\n";
        let said = world.run(&["train", "run.yaml", "--quiet", "--out", "out", "--set", &setting]);
        assert_eq!((said.code, said.stderr.as_str()), (Some(2), expected), "{mode}");
    }
    let said = world.run(&["train", "run.yaml", "--quiet", "--out", "out", "--set", "data.eval_split=0.01"]).ok();
    let expected =
        "warning: `data.eval_split` is 0.01, which of so few rows holds out none: there is no evaluation data\n";
    assert_eq!(said.stderr, expected);
}

#[test]
fn a_buffer_for_less_than_a_sequence() {
    let world = World::new();
    let args =
        ["train", "run.yaml", "--quiet", "--out", "out", "--set", "data.mode=streaming", "--set", "data.buffer=1KiB"];
    let said = world.run(&args);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    let begin = "error: --set data.buffer: a stream buffer of 1KiB is too small for sequences of up to 32 tokens\n\
        hint: set data.buffer to ";
    assert!(said.stderr.starts_with(begin), "{}", said.stderr);
    let enough = said.stderr[begin.len()..].split(' ').next().unwrap();
    let setting = format!("data.buffer={enough}");
    world
        .run(&["train", "run.yaml", "--quiet", "--out", "out", "--set", "data.mode=streaming", "--set", &setting])
        .ok();
}
