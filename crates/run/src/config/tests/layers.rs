//! What wins over what, and where it came from.

use std::sync::Arc;

use super::*;
use crate::config::schema::{self, Form};

#[test]
fn precedence_is_flag_environment_file_default() {
    let text = "model: tiny\noptimizer: {lr: 1e-5, eps: 1e-7}\nmemory: {gpu: 1GiB}\nseed: 1\n";
    let overrides = Overrides {
        environment: vec![
            ("PLIMSOLL_OPTIMIZER_LR".to_owned(), "2e-5".to_owned()),
            ("PLIMSOLL_SEED".to_owned(), "2".to_owned()),
            ("PLIMSOLL_MEMORY_GPU".to_owned(), "2GiB".to_owned()),
            ("PATH".to_owned(), "/bin".to_owned()),
        ],
        set: vec!["seed=3".to_owned(), "seed=4".to_owned(), "memory.gpu=3GiB".to_owned()],
        flags: vec![Flag { name: "--gpu", path: "memory.gpu", value: "4GiB".to_owned() }],
    };
    let resolved = load(source(text), &overrides).unwrap();
    let run = &resolved.run;
    assert_eq!((run.optimizer.lr, run.optimizer.eps, run.seed), (2e-5, Some(1e-7), 4));
    assert_eq!(run.memory.gpu, Budget::Bytes(4 << 30));

    let name: Arc<str> = "run.yaml".into();
    let check = |path: &str, expected: Origin| assert_eq!(resolved.origin(path), Some(&expected));
    check("memory.gpu", Origin::Flag { name: "--gpu" });
    check("seed", Origin::Set { key: "seed".to_owned() });
    check("optimizer.lr", Origin::Environment { variable: "PLIMSOLL_OPTIMIZER_LR".to_owned() });
    check("optimizer.eps", Origin::File { name, line: 2, column: 28 });
    check("optimizer.name", Origin::Default);
    assert_eq!(resolved.origin("eval.every"), None);
}

#[test]
fn a_higher_choice_replaces_its_rival() {
    let text = "model: tiny\nbatch: {sequences: 8}\nschedule: {epochs: 3}\nmethod: {lora: {r: 4}}\n";
    let overrides = set(&["batch.tokens=4096", "schedule.steps=10", "method=full"]);
    let run = load(source(text), &overrides).unwrap().run;
    assert_eq!(run.batch, Batch::Tokens(4096));
    assert_eq!(run.schedule.length(), Length::Steps(10));
    assert_eq!(run.method, Method::Full { freeze: vec![] });

    let run = load(source(text), &set(&["method.lora.alpha=1"])).unwrap().run;
    let Method::Lora(lora) = run.method else { panic!("{:?}", run.method) };
    assert_eq!((lora.r, lora.alpha), (4, 1.0));
}

#[test]
fn every_default_is_valid_and_every_variable_is_unambiguous() {
    let mut variables = std::collections::BTreeSet::new();
    for (path, key) in schema::paths() {
        let variable = path.replace('.', "_");
        assert!(variables.insert(variable.clone()), "{variable} stands for two keys");
        if let (Some(default), Form::Leaf(_) | Form::Either(..)) = (key.default, key.form) {
            let overrides = set(&[&format!("{path}={default}")]);
            load(source("model: tiny\n"), &overrides).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}
