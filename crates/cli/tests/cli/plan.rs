//! `plimsoll plan`.

use serde_json::Value as Json;

use crate::support::{SHAPE, World};

pub const LORA: &str = "\
model: smollm2-135m
method: {lora: {r: 8, alpha: 16}}
data: {max_length: 512}
batch: {sequences: 8}
memory: {host: 16GiB}
";

#[track_caller]
fn has_every_promised_key(report: &Json) {
    let has = |path: &str| {
        let found = path.split('.').try_fold(report, |node, key| node.get(key));
        assert!(found.is_some(), "{path} is missing: {report}");
    };
    for path in ["fits", "device", "effective_batch.sequences", "micro_batch_tokens", "accumulation"] {
        has(path);
    }
    for path in ["recompute", "offload", "loss_chunks", "update_in_backward", "alternatives"] {
        has(path);
    }
    for memory in ["gpu", "host"] {
        has(&format!("{memory}.budget_bytes"));
        has(&format!("{memory}.planned_bytes"));
    }
    let gpu = ["weights", "adapters", "gradients", "optimizer", "activations", "loss", "workspace", "transfer"];
    for category in gpu.iter().chain(&["context", "fragmentation"]) {
        has(&format!("gpu.categories.{category}"));
    }
    for category in ["process", "offload", "pinned", "data", "snapshot"] {
        has(&format!("host.categories.{category}"));
    }
    for key in ["step_ms", "tokens_per_s", "bound_by"] {
        has(&format!("predicted.{key}"));
    }
    let limits = report["predicted"]["limits"].as_object().unwrap();
    assert!((limits.values().map(|share| share.as_f64().unwrap()).sum::<f64>() - 1.0).abs() < 1e-9, "{report}");
    let alternatives = report["alternatives"].as_array().unwrap();
    assert!(!alternatives.is_empty());
    for alternative in alternatives {
        for key in ["name", "gpu_bytes", "host_bytes", "tokens_per_s", "fits", "why_not"] {
            assert!(alternative.get(key).is_some(), "{key}: {alternative}");
        }
    }
}

/// The categories of a memory are all of it.
#[track_caller]
fn adds_up(memory: &Json) {
    let categories = memory["categories"].as_object().unwrap();
    let sum: u64 = categories.values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(sum, memory["planned_bytes"].as_u64().unwrap(), "{memory}");
}

/// Who saves by updates gets a snapshot where there is room; who says how, is obeyed; who saves rarely pays nothing.
#[test]
fn a_snapshot_is_planned_where_it_is_of_use() {
    let world = World::bare(&format!("{SHAPE}data: {{max_length: 64}}\n"));
    let planned = |settings: &[&str]| {
        let set = settings.iter().flat_map(|setting| ["--set", setting]);
        let args: Vec<&str> = ["plan", "run.yaml", "--json", "--device", "cpu"].into_iter().chain(set).collect();
        let report = world.run(&args).ok().json();
        adds_up(&report["host"]);
        let bytes = report["host"]["categories"]["snapshot"].as_u64().unwrap();
        assert!(report["host"]["allowance_bytes"].as_u64().unwrap() > 0);
        assert_eq!(bytes > 0, report["save"] == "beside", "{report}");
        bytes
    };
    assert_eq!(planned(&[]), 0);
    assert_eq!(planned(&["save.every=5", "memory.goal=lowest"]), 0);
    assert_eq!(planned(&["save.every=5", "plan.save=between"]), 0);
    let bytes = planned(&["save.every=5"]);
    assert!(bytes > 0);
    assert_eq!(planned(&["save.best=loss"]), bytes);
    assert_eq!(planned(&["plan.save=beside"]), bytes);
    let args = ["plan", "run.yaml", "--device", "cpu", "--set", "plan.save=beside", "--host", "1MiB"];
    let said = world.run(&args);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert!(said.stderr.contains("hint: plan.save: between"), "{}", said.stderr);
}

#[test]
fn json_for_the_cpu() {
    let world = World::bare(&format!("{SHAPE}data: {{max_length: 64}}\n"));
    let report = world.run(&["plan", "run.yaml", "--json"]).ok().json();
    has_every_promised_key(&report);
    adds_up(&report["host"]);
    assert_eq!((report["device"].as_str(), report["gpu"]["planned_bytes"].as_u64()), (Some("cpu"), Some(0)));
    assert!(report["host"]["categories"]["weights"].as_u64().unwrap() > 0, "the arena lies in the host's memory");
}

#[test]
fn json_for_a_card() {
    let world = World::bare(LORA);
    let report = world.run(&["plan", "run.yaml", "--json", "--device", "RTX 4090"]).ok().json();
    has_every_promised_key(&report);
    adds_up(&report["gpu"]);
    adds_up(&report["host"]);
    assert_eq!(report["effective_batch"]["sequences"], 8);
    let budget = report["gpu"]["budget_bytes"].as_u64().unwrap();
    assert!((20 << 30..=24 << 30).contains(&budget), "the card's own memory: {budget}");
}

/// What `plan` prints, to the letter. When a change of the output is meant, put the new one here:
/// `plimsoll plan run.yaml --device 'RTX 4090'` with the run above.
#[test]
fn text_for_a_card() {
    let world = World::bare(LORA);
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 4090"]).ok();
    assert_eq!(said.stderr, "");
    crate::snapshots::compare("plan-pipe.txt", &said.stdout);
}

#[test]
fn where_each_value_came_from() {
    let world = World::bare(LORA);
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 4090", "--origins", "--quiet"]).ok();
    let line = |key: &str| {
        let found = said.stderr.lines().find(|line| line.starts_with(key));
        found.unwrap_or_else(|| panic!("{key}: {}", said.stderr)).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("model"), "model smollm2-135m run.yaml:1");
    assert_eq!(line("batch.sequences"), "batch.sequences 8 run.yaml:4");
    assert_eq!(line("seed"), "seed 42 default");
}

#[test]
fn a_refusal_names_a_budget_that_works() {
    let world = World::bare(LORA);
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 4090", "--gpu", "512MiB"]);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    let budget = smallest_budget(&said.stderr, "--gpu");
    world.run(&["plan", "run.yaml", "--device", "RTX 4090", "--gpu", &budget]).ok();

    let said = world.run(&["plan", "run.yaml", "--device", "RTX 4090", "--gpu", "512MiB", "--json"]);
    assert_eq!((said.code, said.json()["fits"].as_bool()), (Some(3), Some(false)));
}

#[test]
fn training_within_the_budget_a_refusal_names() {
    let world = World::new();
    let said = world.run(&["train", "run.yaml", "--out", "out", "--host", "2MiB"]);
    assert_eq!(said.code, Some(3), "{}", said.stderr);
    assert_eq!(said.stdout, "");
    assert!(!world.path("out").exists());
    let budget = smallest_budget(&said.stderr, "--host");
    world.run(&["train", "run.yaml", "--out", "out", "--quiet", "--host", &budget]).ok();
}

/// What the process itself takes is measured anew for every plan, and may have grown by planning.
#[test]
fn a_plan_is_within_its_budget_on_the_cpu() {
    let world = World::bare(&format!("{SHAPE}data: {{max_length: 256}}\nbatch: {{sequences: 32}}\n"));
    let planned = |args: &[&str]| {
        let report = world.run(&[&["plan", "run.yaml", "--device", "cpu", "--json"], args].concat()).ok().json();
        report["host"]["planned_bytes"].as_u64().unwrap()
    };
    let (low, high) = (planned(&["--goal", "lowest"]), planned(&[]));
    // A little more than the least, which differs from process to process.
    for twelfth in 2..=12 {
        let budget = low + (high - low) * twelfth / 12;
        let found = planned(&["--host", &budget.to_string()]);
        assert!(found <= budget, "{found} of {budget}");
    }
}

/// The quickstart fits whatever it is planned for, and a budget that was given stays as it was given.
#[test]
fn the_quickstart_has_a_budget_for_each_device() {
    let world = World::bare("");
    let host = |args: &[&str]| {
        let json = world.run(&[&["plan", "--json"][..], args].concat()).ok().json();
        json["host"]["budget_bytes"].as_u64().expect("a size") >> 20
    };
    assert_eq!(host(&["--device", "cpu"]), 512);
    for card in ["RTX 3060", "L4", "H200"] {
        assert_eq!(host(&["--device", card]), 2048, "{card}");
        assert_eq!(host(&["--device", card, "--host", "1GiB"]), 1024, "{card}");
    }
    let said = world.run(&["plan", "--device", "H200", "--origins", "--quiet"]).ok();
    let line = said.stderr.lines().find(|line| line.starts_with("memory.host.gpu")).expect("its origin");
    assert!(line.contains("2GiB") && line.contains(" quickstart:"), "{line}");
}

/// The size in `hint: the smallest budget that works is --gpu 812MiB`.
/// In every mode; the process is counted, which differs a little from start to start.
#[test]
fn a_plan_knows_what_data_and_process_take() {
    const SLACK_BYTES: u64 = 8 << 20;
    let world = World::new();
    for mode in ["memory", "cached", "streaming"] {
        let setting = format!("data.mode={mode}");
        let plan = world.run(&["plan", "run.yaml", "--json", "--set", &setting]).ok();
        assert!(!plan.stderr.contains("does not count"), "{}", plan.stderr);
        assert!(!world.path("token-cache").exists() && !world.path("runs").exists(), "a plan writes nothing");
        world.run(&["train", "run.yaml", "--out", mode, "--quiet", "--steps", "1", "--set", &setting]).ok();
        let (planned, taken) = (plan.json(), world.json(&format!("{mode}/plan.json")));
        let of = |report: &Json, name: &str| report["host"]["categories"][name].as_u64().unwrap();
        assert_eq!(of(&planned, "data"), of(&taken, "data"), "{mode}");
        assert!(of(&planned, "process").abs_diff(of(&taken, "process")) < SLACK_BYTES, "{mode}: {planned} {taken}");
        std::fs::remove_dir_all(world.path("token-cache")).ok();
    }
}

#[test]
fn a_plan_without_its_data_says_so() {
    let world = World::new();
    std::fs::remove_file(world.path("train.jsonl")).unwrap();
    let said = world.run(&["plan", "run.yaml", "--device", "cpu"]).ok();
    let note = "the plan does not count the memory of the data: cannot read train.jsonl: No such file or directory";
    assert!(said.stderr.contains(note), "{}", said.stderr);
}

fn smallest_budget(stderr: &str, flag: &str) -> String {
    let hint = format!("hint: the smallest budget that works is {flag} ");
    let line = stderr.lines().find_map(|line| line.strip_prefix(&hint));
    line.unwrap_or_else(|| panic!("no budget in {stderr}")).to_owned()
}

/// What a plan takes under either mode, in one answer.
#[test]
fn both_modes_are_shown_for_a_card() {
    let world = World::bare(&format!("{SHAPE}data: {{max_length: 32}}\nbatch: {{sequences: 4}}\n"));
    let json = |mode: &str| {
        world.run(&["plan", "run.yaml", "--json", "--device", "RTX 4090", "--gpu", "2GiB", "--mode", mode]).ok().json()
    };
    let compiled = json("compiled");
    let bytes = |path: &str| compiled["modes"][path].as_u64().expect("a size");
    let recorded = compiled["gpu"]["categories"]["recorded"].as_u64().expect("a size");
    assert!(recorded > 0);
    assert_eq!(bytes("compiled_bytes"), compiled["gpu"]["planned_bytes"].as_u64().expect("a size"));
    assert_eq!(bytes("compiled_bytes"), bytes("eager_bytes") + recorded);
    let eager = json("eager");
    assert_eq!(eager["gpu"]["planned_bytes"], compiled["modes"]["eager_bytes"]);
    assert_eq!(eager["gpu"]["categories"]["recorded"], 0);
    assert_eq!(eager["modes"], compiled["modes"], "the other mode is shown whichever is chosen");
}

/// More memory never makes the planned speed drop below what the tie rule allows, and the curve says what it buys.
#[test]
fn more_budget_is_not_slower() {
    let world = World::bare(LORA);
    let plan = |gpu: &str| world.run(&["plan", "run.yaml", "--device", "RTX 4090", "--json", "--gpu", gpu]).ok().json();
    let speed = |report: &Json| report["predicted"]["tokens_per_s"].as_f64().expect("a speed");
    let mut fastest = 0f64;
    for mib in (1000..=4000).step_by(250) {
        let report = plan(&format!("{mib}MiB"));
        assert!(speed(&report) >= 0.98 * fastest, "{mib} MiB: {} after {fastest}", speed(&report));
        fastest = fastest.max(speed(&report));
        for point in report["next_gib"].as_array().expect("a list") {
            let (bytes, promised) = (&point["gpu_bytes"], point["tokens_per_s"].as_f64().expect("a speed"));
            assert!(promised > speed(&report));
            let kept = speed(&plan(&format!("{}B", bytes.as_u64().expect("bytes"))));
            assert!((kept / promised - 1.0).abs() < 0.02, "{mib} MiB: {promised} promised at {bytes}, {kept} planned");
        }
    }
}

#[test]
fn a_card_by_its_figures() {
    let world = World::bare(LORA);
    let figures = "device={memory: 8GiB, tflops: 40, bandwidth: 400GB/s, name: Mine}";
    let report = world.run(&["plan", "run.yaml", "--set", figures, "--set", "schedule.steps=10", "--json"]).ok().json();
    assert_eq!((report["device"].as_str(), report["gpu"]["budget_bytes"].as_u64()), (Some("Mine"), Some(8 << 30)));
    let seconds = report["predicted"]["step_ms"].as_f64().expect("a time") / 100.0;
    assert!((report["total_s"].as_f64().expect("a time") / seconds - 1.0).abs() < 1e-9);
    let said = world.run(&["train", "run.yaml", "--set", figures, "--set", "init=random"]);
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("describes a GPU to plan for"), "{}", said.stderr);
}

/// Budgets are ceilings of what there is.
#[test]
fn budgets_beyond_the_card_are_cut() {
    let world = World::bare(LORA);
    let said = world.run(&["plan", "run.yaml", "--device", "RTX 3060", "--gpu", "500GiB", "--json"]).ok();
    assert!(
        said.stderr.contains("the budget of 500.00 GiB exceeds the 11.75 GiB of NVIDIA RTX 3060"),
        "{}",
        said.stderr
    );
    assert!(said.json()["gpu"]["budget_bytes"].as_u64().expect("bytes") < 12 << 30);
    let said = world.run(&["plan", "run.yaml", "--device", "cpu", "--host", "9000GiB"]).ok();
    assert!(said.stderr.contains("exceeds this machine's memory"), "{}", said.stderr);
}

/// Methods with their memory and speed; what does not fit says by how much, and the run's own is marked.
#[test]
fn methods_are_compared() {
    let world = World::bare(LORA);
    let args = ["plan", "run.yaml", "--device", "RTX 4090", "--alternatives", "methods", "--gpu"];
    let ask = |gpu: &str, more: &[&str]| world.run(&[&args[..], &[gpu], more].concat());
    let json = ask("1200MiB", &["--json"]).ok().json();
    assert_eq!((&json["fits"], &json["gpu"]["budget_bytes"]), (&true.into(), &(1200u64 << 20).into()));
    let rows = json["alternatives"].as_array().unwrap().clone();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{name}: {json}"));
    let gpu = |name: &str| row(name)["gpu_bytes"].as_u64().unwrap();
    let chosen: Vec<&Json> = rows.iter().filter(|row| row["chosen"] == true).map(|row| &row["name"]).collect();
    assert_eq!(chosen, ["lora, rank 8"]);
    assert!(row("lora, rank 8")["fits"] == true && gpu("lora, rank 64") < gpu("full, adafactor"));
    let full = ["int8", "bf16", "fp32"].map(|state| format!("full, adamw with {state} states"));
    let [int8, bf16, fp32] = full.each_ref().map(|name| gpu(name));
    assert!(int8 < bf16 && bf16 < fp32 && gpu("lower half frozen, adamw with fp32 states") < fp32);
    assert!(gpu("full, adafactor") < fp32);
    assert!(row(&full[2])["fits"] == false, "{json}");
    assert!(row(&full[2])["why_not"].as_str().unwrap().contains("over the GPU budget"), "{json}");
    // Those that fit come first, the fastest of them first.
    let fits: Vec<bool> = rows.iter().map(|row| row["fits"] == true).collect();
    assert!(fits.is_sorted_by_key(|fits| !fits), "{json}");
    let speeds: Vec<f64> =
        rows.iter().filter(|row| row["fits"] == true).map(|r| r["tokens_per_s"].as_f64().unwrap()).collect();
    assert!(speeds.is_sorted_by(|a, b| a >= b), "{json}");
    let table = ask("1200MiB", &[]).ok().stdout;
    assert_eq!(table.lines().count(), rows.len() + 1, "{table}");
    let refused = ask("64MiB", &["--json"]);
    assert_eq!((refused.code, &refused.json()["fits"]), (Some(3), &false.into()), "{}", refused.stderr);
}

#[test]
fn updates_in_the_backward_pass_are_shown_and_refused_by_name() {
    let world = World::bare(&format!("{SHAPE}data: {{max_length: 64}}\nbatch: {{sequences: 2}}\nclip: none\n"));
    let plan = |more: &[&str]| world.run(&[&["plan", "run.yaml", "--device", "cpu"], more].concat());
    let pinned = ["--set", "plan.update_in_backward=true"];
    let json = |more: &[&str]| plan(&[more, &["--json"]].concat()).ok().json();
    assert_eq!(json(&[])["update_in_backward"], false, "updates stay whole where everything fits");
    let inside = json(&pinned);
    assert_eq!(inside["update_in_backward"], true);
    assert_eq!(inside["host"]["categories"]["gradients"].as_u64().map(|bytes| bytes < 1 << 20), Some(true), "{inside}");
    assert!(plan(&pinned).ok().stdout.contains("in the backward pass"));
    for (setting, reason) in [
        ("clip=1.0", "clipping takes the norm of all gradients first"),
        ("guard.action=skip", "`guard` looks at an update before any weight is touched"),
        ("plan.micro_batch_tokens=64", "an update of several micro-batches sums their gradients up first"),
    ] {
        let said = plan(&[&pinned[..], &["--set", setting]].concat());
        assert_eq!(said.code, Some(2), "{}", said.stderr);
        assert!(said.stderr.contains(reason), "{setting}: {}", said.stderr);
    }
}
