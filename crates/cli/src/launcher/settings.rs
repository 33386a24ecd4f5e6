//! A draft as arguments of a command.

use std::path::Path;

use plimsoll_observe::dashboard::{Choices, Draft, Refused};
use plimsoll_run::config::quoted;

/// The run file, if there is one, and what stands above it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    file: Option<String>,
    set: Vec<String>,
}

impl Settings {
    pub fn args(&self) -> Vec<String> {
        let set = self.set.iter().map(|set| format!("--set={set}"));
        set.chain(self.file.iter().map(|file| from_here(file))).collect()
    }
}

/// No file is taken for a flag.
fn from_here(path: &str) -> String {
    if Path::new(path).is_absolute() { path.to_owned() } else { format!("./{path}") }
}

/// Names are short.
const NAME_CHARS_MAX: usize = 64;

/// What a draft comes to. Everything in it must be one of what was offered, or a number.
pub fn of(draft: &Draft, offered: &Choices) -> Result<Settings, Refused> {
    let mut settings = Settings::default();
    let mut set = |key: &str, value: &dyn std::fmt::Display| settings.set.push(format!("{key}={value}"));
    if !offered.models.iter().any(|model| model.word == draft.model) {
        return Err(Refused::wrong(format!("`{}` is no model on offer", draft.model)));
    }
    match draft.model.split_once(':') {
        Some(("preset", name)) => {
            set("model", &quoted(name));
            set("init", &"random");
        }
        Some(("folder", path)) => set("model", &quoted(path)),
        _ => {}
    }
    if let Some(data) = one_of("data", draft.data.as_ref(), &offered.data)? {
        set("data.train", &quoted(data));
    }
    if let Some(tokenizer) = one_of("tokenizer", draft.tokenizer.as_ref(), &offered.tokenizers)? {
        set("data.tokenizer", tokenizer);
    }
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for (key, value, known) in [
        ("task", &draft.task, offered.tasks.clone()),
        ("method", &draft.method, words(&["lora", "full"])),
        ("device", &draft.device, words(&["cpu"])),
        ("memory.goal", &draft.goal, words(&["fastest", "lowest"])),
    ] {
        if let Some(value) = one_of(key, value.as_ref(), &known)? {
            set(key, value);
        }
    }
    for (key, unit, value) in [
        ("memory.gpu", "MiB", draft.gpu_mib),
        ("memory.host", "MiB", draft.host_mib),
        ("batch.sequences", "", draft.sequences),
        ("data.max_length", "", draft.max_length),
        ("schedule.steps", "", draft.steps),
    ] {
        if let Some(value) = value {
            set(key, &format!("{value}{unit}"));
        }
    }
    if let Some(lr) = draft.lr {
        set("optimizer.lr", &lr);
    }
    settings.file = draft.model.strip_prefix("file:").map(str::to_owned);
    Ok(settings)
}

fn one_of<'a>(what: &str, value: Option<&'a String>, known: &[String]) -> Result<Option<&'a String>, Refused> {
    match value {
        Some(value) if !known.contains(value) => Err(Refused::wrong(format!("{what}: `{value}` is not on offer"))),
        value => Ok(value),
    }
}

/// The name of a new run: that which was asked for, or one that says what it trains. It is the name of a folder, and of
/// nothing above or below.
pub fn run_name(draft: &Draft) -> Result<String, Refused> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name = if draft.name.is_empty() {
        let word = draft.model.rsplit(['/', ':']).next().unwrap_or_default();
        let stem = word.strip_suffix(".yaml").or_else(|| word.strip_suffix(".yml")).unwrap_or(word);
        let plain: String = stem.chars().map(|c| if plain(c) { c } else { '-' }).take(NAME_CHARS_MAX).collect();
        let plain = plain.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        if plain.is_empty() { "run".to_owned() } else { plain.to_owned() }
    } else {
        draft.name.clone()
    };
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins_well || !name.chars().all(plain) || name.len() > NAME_CHARS_MAX {
        let rule = "letters, digits, `-`, `_` and `.`, a letter or digit first, 64 at most";
        return Err(Refused::wrong(format!("`{name}` cannot be the name of a run: {rule}")));
    }
    Ok(name)
}

/// The command as one types it.
pub fn shown(command: &str, settings: &Settings) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,%@+".contains(c);
    let word = |word: &String| match word.chars().all(plain) {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    };
    let file = settings.file.iter().map(word);
    let set = settings.set.iter().map(|set| format!("--set {}", word(set)));
    let words: Vec<String> = ["plimsoll".to_owned(), command.to_owned()].into_iter().chain(file).chain(set).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use plimsoll_observe::dashboard::Model;

    use super::*;

    fn offered() -> Choices {
        let model = |word: &str| Model { word: word.to_owned(), ..Model::default() };
        Choices {
            models: ["quickstart", "preset:qwen3-0.6b", "folder:my models/a", "file:runs of mine/a.yaml"]
                .map(model)
                .into(),
            data: vec!["data/it's.jsonl".to_owned()],
            tasks: vec!["sft".to_owned()],
            ..Choices::default()
        }
    }

    fn draft(model: &str) -> Draft {
        Draft { model: model.to_owned(), ..Draft::default() }
    }

    #[test]
    fn drafts_become_commands() {
        let full = Draft {
            data: Some("data/it's.jsonl".to_owned()),
            task: Some("sft".to_owned()),
            method: Some("lora".to_owned()),
            gpu_mib: Some(12288),
            steps: Some(10),
            lr: Some(2e-5),
            ..draft("folder:my models/a")
        };
        let settings = of(&full, &offered()).expect("on offer");
        let expected = [
            "--set=model=\"my models/a\"",
            "--set=data.train=\"data/it's.jsonl\"",
            "--set=task=sft",
            "--set=method=lora",
            "--set=memory.gpu=12288MiB",
            "--set=schedule.steps=10",
            "--set=optimizer.lr=0.00002",
        ];
        assert_eq!(settings.args(), expected);
        let shown = shown("train", &settings);
        let expected =
            r#"plimsoll train --set 'model="my models/a"' --set 'data.train="data/it'\''s.jsonl"' --set task=sft"#;
        assert!(shown.starts_with(expected), "{shown}");
        assert_eq!(of(&draft("quickstart"), &offered()).expect("on offer").args(), [""; 0]);
        let file = of(&draft("file:runs of mine/a.yaml"), &offered()).expect("on offer");
        assert_eq!(file.args(), ["./runs of mine/a.yaml"]);
        let preset = of(&draft("preset:qwen3-0.6b"), &offered()).expect("on offer");
        assert_eq!(preset.args(), ["--set=model=qwen3-0.6b", "--set=init=random"]);
    }

    #[test]
    fn only_what_was_offered_is_taken() {
        let wrong = |draft: Draft| of(&draft, &offered()).expect_err("not on offer").status;
        for model in ["", "folder:/etc", "file:../a.yaml", "folder:my models/a/../b", "my models/a"] {
            assert_eq!(wrong(draft(model)), 422, "{model}");
        }
        let given = |text: &str| Some(text.to_owned());
        assert_eq!(wrong(Draft { data: given("/etc/passwd"), ..draft("quickstart") }), 422);
        assert_eq!(wrong(Draft { tokenizer: given("/etc"), ..draft("quickstart") }), 422);
        assert_eq!(wrong(Draft { task: given("sft\nout: /"), ..draft("quickstart") }), 422);
        assert_eq!(wrong(Draft { device: given("H200"), ..draft("quickstart") }), 422);
    }

    #[test]
    fn names_are_names_of_folders() {
        let named = |name: &str| run_name(&Draft { name: name.to_owned(), ..draft("quickstart") });
        for name in ["..", ".", "../a", "a/b", "/a", "-a", ".a", "a b", "a\n", "ä", &"a".repeat(65)] {
            assert_eq!(named(name).expect_err("no name").status, 422, "{name}");
        }
        assert_eq!(named("Run_2.b-1").expect("a name"), "Run_2.b-1");
        for (model, expected) in
            [("quickstart", "quickstart"), ("file:a/my run.yaml", "my-run"), ("folder:../..", "run"), ("preset:x", "x")]
        {
            assert_eq!(run_name(&draft(model)).expect("a name"), expected);
        }
    }
}
