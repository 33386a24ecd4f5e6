//! How Chinese looks: every command is run, and what it says is read for words that were left in English.

use unicode_width::UnicodeWidthStr;

use crate::plan::LORA;
use crate::pty::{Dialogue, lines, on_terminal};
use crate::support::{RUN, SHAPE, World, rows};

/// Words that stay as they are: names, units, and words of keys.
const NAMES: [&str; 35] = [
    "adamw", "alpha", "bleu", "bpe", "cgroup", "compiled", "cpu", "eager", "embed", "fastest", "float", "full",
    "gated", "gguf", "host", "linear", "logits", "lora", "lowest", "micro", "min", "model", "plimsoll", "rope", "rows",
    "sft", "swiglu", "shell", "smollm", "text", "token", "train", "unigram", "user", "zh",
];
/// Words in a row that are no longer a name.
const WORDS_MAX: usize = 2;

fn is_chinese(c: char) -> bool {
    ('\u{4e00}'..='\u{9fff}').contains(&c)
}

/// The English words of a line that are no names: what is quoted, has digits or marks, or is in capitals is left out.
fn english(line: &str) -> Vec<Vec<&str>> {
    let mut bare = String::new();
    for (index, part) in line.split('`').enumerate() {
        bare += if index % 2 == 0 { part } else { "0" };
    }
    let line: &str = Box::leak(bare.into_boxed_str());
    let pieces = line.split(|c: char| c == ' ' || is_chinese(c) || "，。：；、（）“”".contains(c));
    let mut runs = vec![Vec::new()];
    for piece in pieces {
        let word = piece.trim_matches(|c: char| ",;:()'\"".contains(c));
        let is_word = word.len() >= 3 && word.chars().all(|c| c.is_ascii_lowercase());
        if is_word && !NAMES.contains(&word) {
            runs.last_mut().expect("never empty").push(word);
        }
        // A list of names is no sentence.
        if !is_word || piece.ends_with(',') {
            runs.push(Vec::new());
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// What of a text is English. Lines of nothing but figures and names are in every language.
fn left_in_english(text: &str) -> Vec<String> {
    let is_left = |line: &&str| {
        let runs = english(line);
        let is_mixed = line.chars().any(is_chinese);
        if is_mixed { runs.iter().any(|run| run.len() > WORDS_MAX) } else { !runs.is_empty() }
    };
    // Rows of the data are in whatever language they are.
    let is_data = |line: &str| line.contains(" and ") && line.contains('?');
    text.lines().filter(|line| !is_data(line)).filter(is_left).map(str::to_owned).collect()
}

fn in_chinese<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &["--lang", "zh"]].concat()
}

#[track_caller]
fn speaks_chinese(world: &World, calls: &[&[&str]]) {
    let mut faults = Vec::new();
    for args in calls {
        let said = world.run(&in_chinese(args));
        let is_script = args.contains(&"--json") || args[0] == "completions";
        let text = if is_script { said.stderr } else { said.stdout + &said.stderr };
        let left = left_in_english(&text);
        if !left.is_empty() {
            faults.push(format!("plimsoll {}\n  {}", args.join(" "), left.join("\n  ")));
        }
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn english_words_are_found() {
    assert_eq!(left_in_english("misleading words stay\n12 MiB  3.5\nruns/a: model"), ["misleading words stay"]);
    assert_eq!(
        left_in_english("运行 runs/a：`no run is here`\n没有 x，but some words stay"),
        ["没有 x，but some words stay"]
    );
}

#[test]
fn help_of_every_command() {
    let world = World::bare("");
    let help = world.run(&["--help"]).ok().stdout;
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 15, "{names:?}");
    let mut calls: Vec<Vec<&str>> =
        vec![vec!["--help"], vec!["-h"], vec!["help"], vec!["tokenizer", "train", "--help"]];
    calls.extend(names.iter().flat_map(|name| [vec![*name, "--help"], vec![*name, "-h"], vec!["help", *name]]));
    let calls: Vec<&[&str]> = calls.iter().map(Vec::as_slice).collect();
    speaks_chinese(&world, &calls);
}

#[test]
fn a_run_from_its_plan_to_its_export() {
    let world = World::new();
    world.write("bad.yaml", "model: model\nbatch: {sequence: 8}\n");
    world.write("lora.yaml", format!("{RUN}method: {{lora: {{r: 4}}}}\n"));
    world.write("small.yaml", "model: smollm2-135m\nbatch: {sequences: 8}\n");
    world.write("nf4.yaml", "model: smollm2-135m\nmethod: {lora: {r: 8}}\nbatch: {sequences: 8}\n");
    world.write("damaged.jsonl", rows().replace("{\"prompt\": \"3 and", "{\"prompt\" \"3 and"));
    speaks_chinese(
        &world,
        &[
            &["keys"],
            &["init", "new.yaml"],
            &["init", "new.yaml"],
            &["init", "flags.yaml", "--model", "model", "--data", "train.jsonl", "--method", "lora-8"],
            &["plan", "run.yaml", "--origins"],
            &["plan", "run.yaml", "--host", "1MiB"],
            &["plan", "small.yaml", "--device", "RTX 4090", "--goal", "lowest"],
            &["plan", "small.yaml", "--device", "RTX 4090", "--gpu", "900MiB"],
            &["plan", "small.yaml", "--device", "RTX 4090", "--gpu", "100GiB"],
            &["plan", "small.yaml", "--device", "RTX 4090", "--alternatives", "methods"],
            &["plan", "small.yaml", "--device", "RTX 4090", "--compare", "pytorch"],
            &["plan", "small.yaml", "--device", "RTX 4090", "--compare", "pytorch", "--gpu", "1500MiB"],
            &["plan", "nf4.yaml", "--device", "RTX 4090", "--base", "nf4"],
            &["plan", "nf4.yaml", "--device", "RTX 4090", "--base", "auto", "--gpu", "900MiB"],
            &["plan", "small.yaml", "--device", "RTX 4090", "--base", "nf4"],
            &["plan", "run.yaml", "--html", "plan.html", "--svg", "plan.svg", "--png", "plan.png", "--quiet"],
            &["train", "run.yaml", "--out", "out", "--set", "eval.samples=2"],
            &["train", "run.yaml", "--out", "out"],
            &["train", "run.yaml", "--out", "out", "--fresh"],
            &["train", "run.yaml", "--out", "out", "--steps", "6", "--resume"],
            &["train", "lora.yaml", "--out", "lora", "--set", "data.mode=cached"],
            &["train", "run.yaml", "--out", "damaged", "--set", "data.train=damaged.jsonl"],
            &["train", "run.yaml", "--out", "other", "--set", "data.train=damaged.jsonl", "--set", "data.bad_rows=0.5"],
            &["bench", "run.yaml", "--steps", "2", "--profile"],
            &["status", "."],
            &["status", "nowhere"],
            &["stop", "out"],
            &["watch", "out"],
            &["watch", "nowhere"],
            &["logs", "nowhere"],
            &["eval", "out", "--data", "train.jsonl"],
            &["generate", "out", "--prompt", "1 and 1?", "--json"],
            &["generate", "out", "--prompt", "", "--json"],
            &["generate", "out", "--prompt", "1", "--temperature", "-1"],
            &["merge", "lora", "--out", "merged"],
            &["merge", "out", "--out", "merged2"],
            &["export", "out", "--to", "gguf", "--out", "a.gguf", "--gpus", "2"],
            &["export", "small.yaml", "--to", "accelerate", "--device", "RTX 4090", "--out", "a.yaml"],
            &["export", "small.yaml", "--to", "deepspeed", "--device", "cpu", "--out", "b.json"],
            &["tokenizer", "train", "--data", "train.jsonl", "--out", "tokenizer", "--vocab-size", "300"],
            &["tokenizer", "train", "--data", "nothing", "--out", "tokenizer2"],
        ],
    );
}

#[test]
fn mistakes_of_all_kinds() {
    let world = World::new();
    world.write("broken.yaml", "model: [model\n");
    let set = |setting: &'static str| ["train", "run.yaml", "--out", "out", "--set", setting];
    let settings = [
        "optimizer.rl=1",
        "optimizer.lr",
        "optimizer.lr=fast",
        "seed=-1",
        "memory.host=0",
        "memory.host=120%",
        "data.train=absent.jsonl",
        "data.train=*.none",
        "data.mode=disk",
        "method={lora: {r: 0}}",
        "method={lora: {targets: [nothing]}}",
        "task=chess",
        "task=reward",
        "model=absent",
        "model=org/absent",
        "batch.tokens=8",
        "batch={sequences: 4, tokens: 100}",
        "plan.recompute={nothing: 1}",
        "plan.loss_chunks=100000",
        "per_device_train_batch_size=1",
        "gradient_checkpointing=true",
        "save.best=bleu",
        "schedule.power=2",
        "data.max_length=1",
        "device=H9000",
        "device=cuda:7",
        "data.columns={prompt: ask}",
        "data.template=none-such",
        "optimizer.groups=[{match: nothing*, lr: 1}]",
    ];
    let settings = settings.map(set);
    let calls: Vec<&[&str]> = settings.iter().map(|args| &args[..]).collect();
    speaks_chinese(&world, &calls);
    speaks_chinese(
        &world,
        &[
            &["plan", "broken.yaml"],
            &["plan", "absent.yaml"],
            &["plan", "--budget", "1"],
            &["train", "--steps", "x"],
            &["train", "--resume", "--fresh"],
            &["export"],
            &["fly"],
            &["keys", "optimizer.learning_rate"],
            &["doctor", "--replay", "absent.json"],
            &["doctor", "--replay", "run.yaml"],
            &["doctor", "--seconds", "0"],
        ],
    );
}

#[test]
fn all_that_the_doctor_finds() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../observe/tests/doctor");
    let world = World::bare("");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap().filter_map(Result::ok) {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let Ok(situation) = serde_json::from_str::<serde_json::Value>(&text) else { continue };
        world.write("machine.json", situation["machine"].to_string());
        let said = world.run(&["doctor", "--replay", "machine.json", "--lang", "zh"]).ok().stdout;
        let found: Vec<&str> = said.lines().filter(|line| line.starts_with(['错', '警', '信', '提'])).collect();
        assert!(!found.is_empty() || said.contains("未发现问题"), "{said}");
        // A command to be typed is one in any language.
        let left = left_in_english(&found.join("\n"));
        let left: Vec<&String> = left.iter().filter(|line| !line.contains("pip install")).collect();
        assert!(left.is_empty(), "{}: {left:?}", entry.path().display());
        count += 1;
    }
    assert!(count >= 30, "{count}");
}

#[test]
fn chinese_fits_into_eighty_columns() {
    let card = "model: smollm2-135m\nmethod: {lora: {r: 8}}\nbatch: {sequences: 8}\n";
    for (text, args) in [
        (card, &["plan", "run.yaml", "--device", "RTX 4090"][..]),
        (card, &["plan", "run.yaml", "--device", "RTX 4090", "--gpu", "512MiB"]),
        (card, &["plan", "run.yaml", "--device", "RTX 4090", "--gpu", "1500MiB", "--goal", "lowest", "--origins"]),
        (card, &["keys"]),
        (card, &["plan", "--help"]),
        (card, &["export", "--help"]),
        (card, &["plan", "--budget", "1"]),
        ("model: tiny\nbatch: {sequence: 1}\n", &["plan", "run.yaml"]),
        ("model: tiny\nper_device_train_batch_size: 1\n", &["plan", "run.yaml"]),
    ] {
        let said = on_terminal(&World::bare(text), 80, &in_chinese(args));
        assert!(said.chars().any(is_chinese), "{said}");
        for line in lines(&said) {
            assert!(line.width() <= 80, "{args:?}: {} columns: {line}", line.width());
        }
    }
}

/// Columns stand below each other, whatever is in them.
#[test]
fn a_plan() {
    let world = World::bare(LORA);
    let said = on_terminal(&world, 80, &in_chinese(&["plan", "run.yaml", "--device", "RTX 4090"]));
    assert_eq!(said, include_str!("../../snapshots/plan-rtx-4090-zh.txt"));
}

#[test]
fn a_refusal() {
    let world = World::bare("model: qwen3-0.6b\nbatch: {sequence: 8}\n");
    let said = world.run(&["plan", "run.yaml", "--lang", "zh"]);
    assert_eq!(said.code, Some(2));
    assert_eq!(
        said.stderr,
        "错误：run.yaml:2:9: 未知的键 `batch.sequence`\n提示：是不是想用 `batch.sequences`？\n\
         提示：`batch` 下可用的有：sequences, tokens\n"
    );
    world.write("run.yaml", "model: mistral-7b\nbatch: {sequences: 8}\n");
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 4090", "--lang", "zh"]);
    assert_eq!(said.code, Some(3));
    let refusal = said.stderr.lines().find(|line| line.starts_with("错误：")).expect("a refusal");
    assert!(
        refusal.starts_with("错误：放不下：最小的计划需要 ") && refusal.ends_with(" GiB GPU 内存，预算为 23.60 GiB"),
        "{refusal}"
    );
    assert!(said.stderr.contains("提示：可行的最小预算是 --gpu "), "{}", said.stderr);
}

#[test]
fn a_mistake_in_the_command_line() {
    let said = World::bare("").run(&["train", "--steps", "x", "--lang=zh"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""));
    assert_eq!(said.stderr, "错误：'--steps <N>' 的值 'x' 无效：含有非数字字符\n\n更多信息请使用 '--help'。\n");
}

/// What is asked and answered, and the comments of the run file that comes of it.
#[test]
fn questions() {
    let world = World::new();
    std::fs::remove_file(world.path("run.yaml")).unwrap();
    world.write("cache/.keep", "");
    let environment = [("PLIMSOLL_DEVICE", "RTX 4090"), ("HF_HUB_CACHE", "cache")];
    let mut dialogue = Dialogue::begin(&world, &in_chinese(&["init"]), &environment);
    dialogue.until("此处的目录").until("Hub id [model]: ").say("7\n");
    dialogue.until("错误：没有第 7 个模型").until("Hub id [model]: ").say("1\n");
    dialogue.until("[1]: ").say("\n");
    dialogue.until("检测到的格式：").until("24 行");
    dialogue.until("任务：sft [sft]: ").say("poetry\n");
    dialogue.until("错误：`poetry` 不是任务").until("任务：sft [sft]: ").say("\n");
    dialogue.until("最长序列的 token 数 [").say("32\n");
    dialogue.until("一次更新的序列数 [32]: ").say("4\n");
    dialogue.until("显存预算 [auto]: ").say("lots\n");
    dialogue.until("错误：`lots` 不是预算").until("显存预算 [auto]: ").say("2GiB\n");
    dialogue.until("主机内存预算 [auto]: ").say("16GiB\n");
    dialogue.until("方法 [").say("lora, rank 8\n");
    dialogue.until("均衡").until("计划 [1]: ").say("3\n");
    dialogue.until("已写入 run.yaml").until("下一步：`plimsoll train run.yaml`");
    assert_eq!(dialogue.end(), Some(0), "{}", dialogue.shown);
    let left = left_in_english(&dialogue.shown.replace('\r', ""));
    assert!(left.is_empty(), "{left:?}");
    let text = world.text("run.yaml");
    let comments = text.lines().filter_map(|line| line.rsplit_once("# ")).map(|(_, comment)| comment);
    let left = left_in_english(&comments.collect::<Vec<_>>().join("\n"));
    assert!(left.is_empty(), "{left:?}");
    assert!(text.contains("# 已选：最省，"), "{text}");
    world.run(&["plan", "run.yaml", "--quiet", "--device", "RTX 4090"]).ok();
}

/// Heads stand above their columns; the log of the run, which other programs read, is in English.
#[test]
fn the_lines_of_a_run() {
    let world = World::new();
    let said = world.run(&["train", "run.yaml", "--out", "out", "--lang", "zh"]).ok();
    let head = said.stderr.lines().position(|line| line.contains("梯度范数")).expect("a head");
    let lines: Vec<&str> = said.stderr.lines().skip(head).take(2).collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["步", "损失", "学习率", "梯度范数", "token/秒", "ms/步", "内存"]
    );
    assert_eq!(lines[0].width(), lines[1].width(), "{}", lines.join("\n"));
    assert!(said.stderr.contains("评估，") && said.stderr.contains("首次更新："), "{}", said.stderr);
    let log = world.text("out/log.txt");
    assert!(log.contains("grad norm") && log.contains("evaluation, ") && !log.chars().any(is_chinese), "{log}");
    assert!(world.text("out/plan.html").contains("<html lang=\"zh-CN\">"));
    let logged = world.run(&["logs", "out", "--lang", "zh"]).ok();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&logged.stdout), words(&log));
}

/// Scripts and people who ask for English get the same whatever the language is.
#[test]
fn results_for_programs_are_in_no_language() {
    let world = World::bare(&format!("{SHAPE}data: {{max_length: 64}}\n"));
    for args in [
        &["plan", "run.yaml", "--json", "--device", "H200", "--host", "8GiB"][..],
        &["keys", "--json"],
        &["keys", "--markdown"],
    ] {
        let (english, chinese) = (world.run(args).ok(), world.run(&in_chinese(args)).ok());
        assert_eq!(english.stdout, chinese.stdout, "{args:?}");
    }
}

#[test]
fn the_language_of_the_environment() {
    let world = World::bare("");
    let said = |variables: &[(&str, &str)], args: &[&str]| {
        let output = world.command(args).envs(variables.iter().copied()).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let (english, chinese) = ("error: nowhere holds no run", "错误：nowhere 中没有运行");
    let check = |variables: &[(&str, &str)], flags: &[&str], expected: &str| {
        let said = said(variables, &[&["logs", "nowhere"], flags].concat());
        assert!(said.starts_with(expected), "{variables:?} {flags:?}: {said}");
    };
    check(&[], &[], english);
    check(&[("LANG", "zh_CN.UTF-8")], &[], chinese);
    check(&[("LANG", "zh_CN.UTF-8"), ("LC_ALL", "C")], &[], english);
    check(&[("LC_ALL", "zh_CN.UTF-8"), ("PLIMSOLL_LANG", "en")], &[], english);
    check(&[("PLIMSOLL_LANG", "en")], &["--lang", "zh"], chinese);
    check(&[("PLIMSOLL_LANG", "zh")], &["--lang=en"], english);
    check(
        &[("PLIMSOLL_LANG", "fr")],
        &[],
        "error: PLIMSOLL_LANG is `fr`, which is not a language of plimsoll\nhint: expected en or zh\n",
    );
    assert!(said(&[], &["logs", "nowhere", "--lang", "fr"]).contains("invalid value 'fr' for '--lang <LANGUAGE>'"));
}
