//! The command line and the run file.

use crate::support::{Refusal, World, refused_in};

/// A run file with `text`, and what the program says of it.
#[track_caller]
fn check(text: &str, args: &[&str], code: i32, expected: &str) {
    refused_in(&World::bare(text), &Refusal { args, code, expected });
}

#[test]
fn unknown_key() {
    check(
        "model: qwen3-0.6b\nbatch: {sequence: 8}\n",
        &["plan", "run.yaml"],
        2,
        "error: run.yaml:2:9: unknown key `batch.sequence`\n\
         hint: did you mean `batch.sequences`?\n\
         hint: allowed under `batch`: sequences, tokens\n",
    );
}

#[test]
fn wrong_type() {
    check(
        "model: qwen3-0.6b\nseed: soon\n",
        &["train", "run.yaml"],
        2,
        "error: run.yaml:2:7: `seed` must be a whole number of at least 0, not `soon`\n",
    );
}

#[test]
fn missing_file() {
    check(
        "",
        &["bench", "absent.yaml"],
        2,
        "error: cannot read absent.yaml: No such file or directory (os error 2)\n\
         hint: `plimsoll init` writes a run file to start from\n",
    );
}

#[test]
fn budget_of_nothing() {
    let expected = |place: &str, key: &str| {
        format!(
            "error: {place}: `{key}` must be a size, a percentage or `auto`, not `0`\n\
             hint: a budget must be above 0; omit it or set `auto` to use the available memory\n"
        )
    };
    let file = "model: qwen3-0.6b\nmemory: {host: 0}\n";
    check(file, &["plan", "run.yaml"], 2, &expected("run.yaml:2:16", "memory.host"));
    let file = "model: qwen3-0.6b\n";
    check(file, &["plan", "run.yaml", "--gpu", "0"], 2, &expected("--gpu", "memory.gpu"));
}

#[test]
fn bad_usage() {
    let world = World::bare("");
    for args in [&["plan", "--budget", "1"][..], &["fly"], &[], &["train", "--steps", "x"], &["completions", "dos"]] {
        let said = world.run(args);
        assert_eq!(said.code, Some(2), "{args:?}");
        assert!(said.stdout.is_empty() && !said.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn help_is_a_result() {
    let world = World::bare("");
    for args in [&["--help"][..], &["--version"], &["train", "--help"]] {
        let said = world.run(args).ok();
        assert!(!said.stdout.is_empty() && said.stderr.is_empty(), "{args:?}");
    }
    let help = world.run(&["--help"]).stdout;
    for command in ["train", "plan", "bench", "keys", "init", "completions"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))), "{command}: {help}");
    }
}

#[test]
fn settings_and_environment_are_checked_as_the_file_is() {
    let file = "model: qwen3-0.6b\n";
    check(
        file,
        &["plan", "run.yaml", "--set", "optimizer.lr"],
        2,
        "error: --set optimizer.lr: expected KEY=VALUE\n\
         hint: for example --set optimizer.lr=1e-4\n",
    );
    check(
        file,
        &["plan", "run.yaml", "--set", "optimizer.rl=1"],
        2,
        "error: --set optimizer.rl: unknown key `optimizer.rl`\n\
         hint: did you mean `optimizer.lr`?\n\
         hint: allowed under `optimizer`: name, lr, weight_decay, decay_norms, betas, eps, momentum, state, \
         muon, adafactor, groups\n",
    );
    let world = World::bare(file);
    let output = world.command(&["plan", "run.yaml"]).env("PLIMSOLL_SEEDS", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: environment variable PLIMSOLL_SEEDS does not match any configuration key\n\
         hint: did you mean PLIMSOLL_SEED?\n\
         hint: PLIMSOLL_* variables mirror the keys of the run file, such as PLIMSOLL_OPTIMIZER_LR for `optimizer.lr`; unset it\n"
    );
}

#[test]
fn not_yaml() {
    let world = World::bare("model: [qwen3\n");
    let said = world.run(&["plan", "run.yaml"]);
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.starts_with("error: run.yaml:"), "{}", said.stderr);
}

#[test]
fn init_writes_once() {
    let world = World::bare("");
    std::fs::remove_file(world.path("run.yaml")).unwrap();
    let init = |args: &[&str]| world.run(&[&["init"], args].concat());
    init(&["--preset", "low-memory"]).ok();
    let first = world.text("run.yaml");
    assert!(first.contains("goal: lowest") && first.contains("model: qwen3-0.6b"));

    let again = init(&["--preset", "fastest"]);
    assert_eq!(again.code, Some(2));
    assert_eq!(
        again.stderr,
        "error: run.yaml already exists\nhint: choose another file, or overwrite it with --force\n"
    );
    assert_eq!(world.text("run.yaml"), first);

    init(&["--preset", "fastest", "--force"]).ok();
    assert_ne!(world.text("run.yaml"), first);
    assert_eq!(init(&["absent/run.yaml"]).code, Some(1));
    assert_eq!(world.names("."), ["run.yaml"], "nothing half-written is left");
}

#[test]
fn shells_can_complete() {
    let world = World::bare("");
    for (shell, part) in [("bash", "complete -F"), ("zsh", "#compdef plimsoll"), ("fish", "complete -c plimsoll")] {
        let script = world.run(&["completions", shell]).ok().stdout;
        assert!(script.contains(part) && script.contains("remeasure"), "{shell}: {script}");
    }
}

/// docs/keys.md is this page: `plimsoll keys --markdown > docs/keys.md` writes it anew.
#[test]
fn the_page_of_keys_is_up_to_date() {
    let page = World::bare("").run(&["keys", "--markdown"]).ok().stdout;
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/keys.md");
    assert!(page == std::fs::read_to_string(docs).unwrap(), "run `plimsoll keys --markdown > docs/keys.md`");
}

/// docs/commands.md is this page: `plimsoll commands > docs/commands.md` writes it anew.
#[test]
fn the_page_of_commands_is_up_to_date() {
    let page = World::bare("").run(&["commands"]).ok().stdout;
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
    assert!(page == std::fs::read_to_string(docs).unwrap(), "run `plimsoll commands > docs/commands.md`");
}

#[test]
fn a_model_or_data_named_without_a_file_is_no_quickstart() {
    let world = World::bare("");
    let yaml = |args: &[&str]| {
        let said = world.run(&[&["plan", "--device", "H200", "--origins", "--quiet"], args].concat()).ok();
        said.stderr
    };
    assert!(yaml(&[]).contains(" quickstart:"));
    let named = yaml(&["--set", "model=smollm2-135m", "--set", "data.train=a.jsonl"]);
    assert!(!named.contains("quickstart") && named.contains("2e-5"), "{named}");
    refused_in(
        &world,
        &Refusal {
            args: &["train", "--set", "data.train=a.jsonl"],
            code: 2,
            expected: "error: `model` is missing: the quickstart's model is not used with other data\n\
                hint: set it with --set model=MODEL, or give a run file; `plimsoll init` writes one to start from\n",
        },
    );
}

#[test]
fn keys_are_a_reference_of_the_run_file() {
    let world = World::bare("");
    let line = |args: &[&str], key: &str| {
        let text = world.run(&[&["keys"], args].concat()).ok().stdout;
        let found = text.lines().find(|line| line.split_whitespace().next() == Some(key)).map(str::to_owned);
        found.unwrap_or_else(|| panic!("{key}: {text}"))
    };
    let lr = line(&[], "optimizer.lr");
    assert!(lr.contains("2e-5") && lr.contains("a number above 0") && lr.contains("learning rate"), "{lr}");
    assert_eq!(line(&["optimizer"], "optimizer.lr").split_whitespace().collect::<Vec<_>>(), {
        lr.split_whitespace().collect::<Vec<_>>()
    });
    let keys = world.run(&["keys", "save", "--json"]).ok().json();
    let paths: Vec<&str> = keys.as_array().unwrap().iter().map(|key| key["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["save", "save.every", "save.minutes", "save.keep", "save.best"]);
    assert_eq!((&keys[2]["default"], &keys[3]["default"]), (&"30".into(), &"2".into()));
    assert!(keys.as_array().unwrap().iter().all(|key| key["help"].as_str().is_some_and(|help| !help.is_empty())));
    refused_in(
        &world,
        &Refusal {
            args: &["keys", "optimizer.learning_rate"],
            code: 2,
            expected: "error: unknown key `optimizer.learning_rate`\n\
                hint: did you mean `optimizer.lr`?\n\
                hint: `plimsoll keys` lists every key\n",
        },
    );
}
