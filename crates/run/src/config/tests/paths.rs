//! Which run a command means, and what its relative paths are relative to.

use std::fs;
use std::path::Path;

use super::*;

/// A folder `configs` with a run file, and what is read from it.
fn read(text: &str, overrides: &Overrides) -> (RunConfig, String) {
    let folder = tempfile::TempDir::new().unwrap();
    let configs = folder.path().join("configs");
    fs::create_dir_all(configs.join("models/tiny")).unwrap();
    let file = configs.join("run.yaml");
    fs::write(&file, text).unwrap();
    (load_run(Some(&file), overrides).unwrap().run, configs.display().to_string())
}

#[test]
fn paths_of_a_run_file_are_relative_to_it() {
    let text = "\
model: models/tiny
data: {train: [{path: a.jsonl, weight: 1}, {path: /b.jsonl, weight: 2}], eval: [c/*.jsonl, 7], tokenizer: ./tok,
  cache: cache, template: t.jinja}
out: runs/x
";
    let (run, configs) = read(text, &Overrides::default());
    assert_eq!(run.model, ModelSource::Name(format!("{configs}/models/tiny")));
    assert_eq!(run.data.train[0].path, format!("{configs}/a.jsonl"));
    assert_eq!(run.data.train[1].path, "/b.jsonl");
    assert_eq!(run.data.eval, [format!("{configs}/c/*.jsonl"), format!("{configs}/7")]);
    assert_eq!(run.data.tokenizer, Some(format!("{configs}/./tok")));
    assert_eq!(run.data.cache, Some(format!("{configs}/cache")));
    assert_eq!(run.data.template, format!("{configs}/t.jinja"));
    assert_eq!(run.out.as_deref(), Some(Path::new(&configs).join("runs/x").as_path()));
}

#[test]
fn names_are_no_paths() {
    let text = "model: org/name\ndata: {train: \"builtin:quickstart\", template: chatml, tokenizer: org/name}\n";
    let (run, _) = read(text, &Overrides::default());
    assert_eq!(run.model, ModelSource::Name("org/name".to_owned()));
    assert_eq!(run.data.train[0].path, "builtin:quickstart");
    assert_eq!((run.data.template.as_str(), run.data.tokenizer.as_deref()), ("chatml", Some("org/name")));
}

#[test]
fn all_other_paths_are_relative_to_the_current_folder() {
    let flags = vec![Flag { name: "--out", path: "out", value: "there".to_owned() }];
    let environment = vec![("PLIMSOLL_DATA_CACHE".to_owned(), "cache".to_owned())];
    let overrides = Overrides { flags, environment, set: vec!["data.train=b.jsonl".to_owned()] };
    let (run, configs) = read("model: models/tiny\ndata: {train: a.jsonl, eval: c.jsonl}\nout: here\n", &overrides);
    assert_eq!(run.data.train[0].path, "b.jsonl");
    assert_eq!(run.data.cache.as_deref(), Some("cache"));
    assert_eq!(run.out.as_deref(), Some(Path::new("there")));
    assert_eq!(run.data.eval, [format!("{configs}/c.jsonl")]);
}

#[test]
fn the_file_in_a_run_folder_is_the_same_run_from_anywhere() {
    let text = "model: tiny\ndata: {train: [{path: a.jsonl, weight: 1}, {path: /b.jsonl, weight: 2}]}\nout: runs/x\n";
    let first = parse(text).unwrap();
    let here = std::env::current_dir().unwrap();
    let (again, _) = read(&first.to_yaml_anywhere(), &Overrides::default());
    assert_eq!(again.data.train[0].path, here.join("a.jsonl").to_str().unwrap());
    assert_eq!(again.out, Some(here.join("runs/x")));
    assert_eq!(again.model, first.run.model);
}

#[test]
fn only_a_command_that_names_nothing_is_the_quickstart() {
    let resolve = |overrides: &Overrides| load_run(None, overrides);
    let quickstart = resolve(&Overrides::default()).unwrap().run;
    assert_eq!(quickstart.name.as_deref(), Some("quickstart"));
    let tuned = resolve(&set(&["optimizer.lr=1", "model.hidden_size=64", "data.max_length=32"])).unwrap().run;
    assert_eq!(tuned.schedule, quickstart.schedule);

    let defaults = parse("model: qwen3-0.6b\ndata: {train: a.jsonl}\n").unwrap().run;
    let named = resolve(&set(&["model=qwen3-0.6b", "data.train=a.jsonl"])).unwrap().run;
    assert_eq!(named, defaults, "nothing of the quickstart is left");
    let named = environment(&[("PLIMSOLL_MODEL", "qwen3-0.6b"), ("PLIMSOLL_DATA_TRAIN", "a.jsonl")]);
    assert_eq!(resolve(&named).unwrap().run, defaults);
    assert_eq!(resolve(&set(&["model=qwen3-0.6b"])).unwrap().run.data.train, []);
    assert_eq!(
        resolve(&set(&["data.train=a.jsonl"])).unwrap_err().to_string(),
        "error: `model` is missing: the quickstart's model is not used with other data\n\
         hint: set it with --set model=MODEL, or give a run file; `plimsoll init` writes one to start from"
    );
}
