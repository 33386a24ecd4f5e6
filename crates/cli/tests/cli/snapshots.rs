//! What every command shows, to the letter: on terminals of 80 and 160 columns, plain and in colour. When a change is
//! meant, `PLIMSOLL_WRITE_SNAPSHOTS=1 cargo test -p plimsoll --test cli snapshots` writes `tests/snapshots` anew, to be
//! read before it is committed.
//!
//! A file has each command of a topic with what it shows at 80 columns, then the lines in which something is coloured, then
//! those lines that are others at 160 columns. Where figures are those of this machine, they are replaced (see
//! [`normalised`]).

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use crate::pty::{lines, written};
use crate::support::World;

const WRITE: &str = "PLIMSOLL_WRITE_SNAPSHOTS";

/// Adapters on a card that need not be here: nothing in it depends on the machine.
const CARD: &str = "model: {family: llama, hidden_size: 576, num_hidden_layers: 4, num_attention_heads: 9,\n  \
    num_key_value_heads: 3, intermediate_size: 1536, vocab_size: 49152, init: random}\n\
    method: {lora: {r: 8}}\ndata: {max_length: 512}\nbatch: {sequences: 8}\nmemory: {host: 16GiB}\ndevice: RTX 4090\n";

/// Whether figures are the same everywhere.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figures {
    Same,
    Vary,
}

/// Compares with a file of `tests/snapshots`, or writes it.
#[track_caller]
pub fn compare(name: &str, found: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name);
    if std::env::var_os(WRITE).is_some() {
        fs::write(path, found).unwrap();
        return;
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(expected.lines()).position(|(a, b)| a != b);
    let at = differs.unwrap_or(found.lines().count().min(expected.lines().count()));
    let around = |text: &str| text.lines().skip(at.saturating_sub(3)).take(9).collect::<Vec<_>>().join("\n");
    assert!(
        found == expected,
        "{name} differs at line {}:\n{}\nwas:\n{}\n{WRITE}=1 writes it anew",
        at + 1,
        around(found),
        around(&expected)
    );
}

/// What commands of one topic show.
struct Topic {
    world: World,
    figures: Figures,
    /// Whether what is in colour is written down.
    colours: bool,
    text: String,
}

impl Topic {
    fn new(world: World, figures: Figures) -> Self {
        Self { world, figures, colours: true, text: String::new() }
    }

    fn show(&mut self, args: &[&str]) {
        self.show_making(args, &[]);
    }

    /// Shows a command at all widths, in colour and without; what it makes is removed before each time.
    fn show_making(&mut self, args: &[&str], made: &[&str]) {
        let typed: Vec<String> = args.iter().map(|word| quoted(word)).collect();
        let _ = writeln!(self.text, "$ plimsoll {}", typed.join(" "));
        let mut narrow = String::new();
        for columns in [80, 160] {
            let look = |colour: bool| {
                for path in made.iter().map(|name| self.world.path(name)) {
                    let _ = fs::remove_dir_all(&path);
                    let _ = fs::remove_file(&path);
                }
                let raw = written(&self.world, columns, args, colour);
                self.kept(&raw, usize::from(columns))
            };
            let (plain, coloured) = (look(false), look(true));
            // Where there is no colour, brackets show what is learnt of an example.
            let unmarked = plain.replace(['⟦', '⟧'], "");
            assert_eq!(uncoloured(&coloured), unmarked, "{args:?}: colours change nothing else");
            if columns == 80 {
                self.text += &plain;
                narrow.clone_from(&plain);
            } else if plain != narrow {
                let others: Vec<&str> =
                    plain.lines().filter(|line| !narrow.lines().any(|other| other == *line)).collect();
                let _ = writeln!(self.text, "--- {columns} columns\n{}", others.join("\n"));
                assert!(
                    self.figures == Figures::Vary || words(&plain) == words(&narrow),
                    "{args:?}: wrapped otherwise"
                );
            }
            if columns == 80 {
                let painted: Vec<&str> = coloured.lines().filter(|line| line.contains("{/}")).collect();
                if self.colours && !painted.is_empty() {
                    let _ = writeln!(self.text, "--- in colour\n{}", painted.join("\n"));
                }
            }
        }
        self.text.push('\n');
    }

    /// The lines that stay on the screen, with colours in words and without what is not of this command.
    fn kept(&self, raw: &str, columns: usize) -> String {
        let folder = self.world.path("").display().to_string();
        let text = in_words(&lines(raw).join("\n")).replace(folder.trim_end_matches('/'), "FOLDER");
        for line in uncoloured(&text).lines() {
            assert!(line.chars().count() <= columns, "{columns} columns: {line}");
        }
        let text = if self.figures == Figures::Vary { normalised(&text) } else { text };
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.join("\n").trim_end().to_owned() + "\n"
    }
}

/// All words, in an order that does not depend on lines.
fn words(text: &str) -> Vec<&str> {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    words.sort_unstable();
    words
}

fn quoted(word: &str) -> String {
    if word.contains([' ', '{']) { format!("'{word}'") } else { word.to_owned() }
}

/// `{cyan}…{/}` for what is in colour, and nothing for what moves the cursor.
fn in_words(text: &str) -> String {
    let mut words = String::new();
    let mut parts = text.split('\x1b');
    words += parts.next().unwrap_or_default();
    for part in parts {
        let (code, rest) = match part.strip_prefix('[').and_then(|part| part.split_once(|c: char| c.is_alphabetic())) {
            Some((code, _)) => (code, &part[code.len() + 2..]),
            None => ("", part),
        };
        let is_style = part.as_bytes().get(1 + code.len()) == Some(&b'm');
        words += match code {
            _ if !is_style => "",
            "0" => "{/}",
            "1" => "{bold}",
            "4" => "{underlined}",
            "1;31" | "31" => "{red}",
            "1;33" | "33" => "{yellow}",
            "32" | "1;32" => "{green}",
            "1;36" | "36" => "{cyan}",
            "2" => "{dim}",
            other => panic!("the style {other} has no name here"),
        };
        words += rest;
    }
    words
}

fn uncoloured(text: &str) -> String {
    let names = ["{/}", "{bold}", "{underlined}", "{red}", "{yellow}", "{green}", "{cyan}", "{dim}"];
    names.iter().fold(text.to_owned(), |text, name| text.replace(name, ""))
}

/// Figures become `#`, whatever their unit; what was wrapped is put together again, since that depends on figures; lines
/// that are then the same stand once.
pub fn normalised(text: &str) -> String {
    let mut whole = String::new();
    for line in text.lines() {
        let continues = line.starts_with("  ") && !whole.is_empty();
        whole += if continues { " " } else { "\n" };
        whole += line.trim();
    }
    let mut lines: Vec<String> = Vec::new();
    for line in whole.lines() {
        let words: Vec<String> = line.split_whitespace().map(figure).collect();
        let mut kept: Vec<String> = Vec::new();
        for word in words {
            let is_unit =
                ["B", "KiB", "MiB", "GiB", "s", "ms", "min", "h"].contains(&word.trim_end_matches([',', ';']));
            match kept.as_slice() {
                [.., last] if is_unit && last.ends_with('#') => {}
                // What bounds a processor is measured each time.
                [.., bound, by] if bound == "bound" && by == "by" => kept.push("#".to_owned()),
                _ => kept.push(word),
            }
        }
        let line = kept.join(" ");
        if lines.last() != Some(&line) {
            lines.push(line);
        }
    }
    lines.join("\n").trim_start().to_owned()
}

/// A word with its figures replaced.
fn figure(word: &str) -> String {
    let mut text = String::new();
    let mut characters = word.chars().peekable();
    while let Some(c) = characters.next() {
        if !c.is_ascii_digit() {
            text.push(c);
            continue;
        }
        while characters.next_if(|c| c.is_ascii_digit() || *c == '.').is_some() {}
        // Exponents.
        if characters.peek() == Some(&'e') {
            characters.next();
            characters.next_if(|c| *c == '-');
            while characters.next_if(char::is_ascii_digit).is_some() {}
        }
        text.push('#');
    }
    text
}

#[test]
fn help() {
    let mut topic = Topic::new(World::bare(CARD), Figures::Same);
    topic.show(&["--help"]);
    // The others are coloured by the same hand.
    topic.colours = false;
    for command in [
        "train",
        "plan",
        "bench",
        "generate",
        "eval",
        "merge",
        "export",
        "stop",
        "status",
        "doctor",
        "logs",
        "dashboard",
        "watch",
        "keys",
        "init",
        "completions",
        "tokenizer",
    ] {
        topic.show(&[command, "--help"]);
    }
    topic.show(&["tokenizer", "train", "--help"]);
    compare("help.txt", &topic.text);
}

#[test]
fn plans() {
    let mut topic = Topic::new(World::bare(CARD), Figures::Same);
    topic.show(&["plan", "run.yaml"]);
    topic.show(&["plan", "run.yaml", "--gpu", "900MiB", "--steps", "1000"]);
    topic.show(&["plan", "run.yaml", "--goal", "lowest", "--set", "method=full"]);
    topic.show(&["plan", "run.yaml", "--gpu", "512MiB"]);
    topic.show(&["plan", "run.yaml", "--gpu", "1200MiB", "--alternatives", "methods"]);
    topic.show(&["plan", "run.yaml", "--gpu", "3GiB", "--compare", "pytorch"]);
    compare("plan.txt", &topic.text);
}

#[test]
fn mistakes() {
    let mut topic = Topic::new(World::bare(CARD), Figures::Same);
    topic.show(&["plan", "absent.yaml"]);
    topic.show(&["plan", "run.yaml", "--set", "batch.sequence=1"]);
    topic.show(&["plan", "run.yaml", "--set", "per_device_train_batch_size=1"]);
    topic.show(&["plan", "run.yaml", "--device", "RTX 9999"]);
    topic.show(&["plan", "--gpus", "1"]);
    topic.show(&["init"]);
    compare("mistakes.txt", &topic.text);
}

#[test]
fn keys() {
    let mut topic = Topic::new(World::bare(CARD), Figures::Same);
    topic.show(&["keys", "memory"]);
    topic.show(&["keys", "save"]);
    compare("keys.txt", &topic.text);
}

const SITUATIONS: [&str; 5] = ["stale_run", "spill_to_host", "full_and_fast", "healthy", "no_card"];

#[test]
fn a_machine() {
    let world = World::bare("");
    world.write("swapping.json", include_str!("swapping.json"));
    for name in SITUATIONS {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../observe/tests/doctor/{name}.json"));
        let situation: serde_json::Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        world.write(&format!("{name}.json"), situation["machine"].to_string());
    }
    let mut topic = Topic::new(world, Figures::Same);
    for name in ["swapping"].into_iter().chain(SITUATIONS) {
        topic.show(&["doctor", "--replay", &format!("{name}.json")]);
    }
    compare("doctor.txt", &topic.text);
}

/// On the CPU, with budgets that do not depend on it.
const HERE: [&str; 4] = ["--device", "cpu", "--host", "1GiB"];

#[test]
fn runs() {
    let mut topic = Topic::new(World::new(), Figures::Vary);
    let train = ["train", "run.yaml", "--out", "out", "--set", "log.every=1", "--set", "eval.samples=1"];
    topic.show_making(&[&train[..], &HERE].concat(), &["out"]);
    topic.show(&[&["bench", "run.yaml", "--steps", "2"][..], &HERE].concat());
    compare("run.txt", &topic.text);
}

/// A run that is over, with adapters.
fn trained() -> World {
    let world = World::new();
    let args = ["train", "run.yaml", "--quiet", "--out", "out", "--set", "method={lora: {r: 4}}"];
    world.run(&[&args[..], &HERE].concat()).ok();
    world
}

#[test]
fn after_a_run() {
    let mut topic = Topic::new(trained(), Figures::Vary);
    topic.show(&["status", "out"]);
    topic.show(&[&["eval", "out", "--data", "train.jsonl"][..], &HERE].concat());
    // What it writes depends on how a machine rounds.
    topic.show(&["generate", "out", "--prompt", ""]);
    topic.show(&["generate", "out", "--prompt", "1 and 1?", "--context", "100000"]);
    topic.show_making(&["merge", "out", "--out", "merged"], &["merged"]);
    topic.show_making(&["export", "out", "--to", "gguf", "--out", "run.gguf"], &["run.gguf"]);
    topic.show(&["train", "run.yaml", "--out", "out", "--fresh"]);
    compare("after.txt", &topic.text);
}

#[test]
fn tokenizers_and_run_files() {
    let world = World::new();
    fs::remove_file(world.path("run.yaml")).unwrap();
    let mut topic = Topic::new(world, Figures::Vary);
    let tokenizer = ["tokenizer", "train", "--data", "train.jsonl", "--out", "tokenizer", "--vocab-size", "300"];
    topic.show_making(&tokenizer, &["tokenizer"]);
    let init = ["init", "--model", "model", "--data", "train.jsonl", "--method", "lora-8"];
    topic.show_making(&init, &["run.yaml"]);
    compare("files.txt", &topic.text);
}
