//! Looking at plans, machines and runs: `plan --html`, `doctor`, `status`, `logs`, `watch`.

use std::time::{Duration, Instant};

use serde_json::Value as Json;

use crate::support::{Refusal, SHAPE, World, refused_in};

/// A machine that swaps, as `doctor --record` writes it.
const SWAPPING: &str = include_str!("swapping.json");

#[test]
fn a_plan_is_drawn_as_a_page_and_for_documents() {
    let world = World::bare(&format!("{SHAPE}data: {{max_length: 64}}\n"));
    let args = ["plan", "run.yaml", "--quiet", "--device", "RTX 4090", "--html", "plan.html", "--svg", "plan.svg"];
    world.run(&[&args[..], &["--png", "plan.png"]].concat()).ok();
    let pixels = world.read("plan.png");
    assert!(pixels.starts_with(b"\x89PNG\r\n\x1a\n") && pixels.ends_with(b"IEND\xae\x42\x60\x82"));
    assert_eq!(pixels[16..24], [0, 0, 9, 96, 0, 0, 5, 160], "2400 by 1440");
    let (page, drawing) = (world.text("plan.html"), world.text("plan.svg"));
    assert!(page.starts_with("<!doctype html>") && drawing.starts_with("<svg "));
    for address in ["http://", "https://", "src=", "@import"] {
        let namespace = "http://www.w3.org/2000/svg";
        assert!(!page.contains(address), "the page asks for nothing: {address}");
        assert!(!drawing.replace(namespace, "").contains(address), "nor does the drawing: {address}");
    }
    let (_, data) = page.split_once(r#"type="application/json">"#).expect("data");
    let data: Json = serde_json::from_str(data.split_once("</script>").expect("an end").0).expect("JSON");
    assert_eq!(data["plans"].as_array().map(Vec::len), Some(1));
    assert_eq!(data["plans"][0]["name"], "run");
    assert_eq!(world.names("."), ["plan.html", "plan.png", "plan.svg", "run.yaml"]);
}

#[test]
fn two_plans_are_drawn_side_by_side() {
    let world = World::bare(&format!("{SHAPE}data: {{max_length: 64}}\n"));
    world.write("other.yaml", format!("{SHAPE}data: {{max_length: 32}}\n"));
    for (beside, name) in [("lowest", "run, lowest"), ("other.yaml", "other")] {
        let args = ["plan", "run.yaml", "--quiet", "--device", "RTX 4090", "--html", "plan.html", "--beside", beside];
        world.run(&args).ok();
        assert!(world.text("plan.html").contains(&format!("<title>Memory plan · run | {name}</title>")), "{beside}");
    }
}

#[test]
fn a_recorded_machine_is_diagnosed() {
    let world = World::bare("");
    world.write("machine.json", SWAPPING);
    let said = world.run(&["doctor", "--replay", "machine.json", "--json"]).ok();
    let report = said.json();
    assert_eq!(report["gpus"][0]["processes"][0]["pid"], 4242);
    assert_eq!(report["gpus"][0]["total_bytes"], 20u64 << 30);
    for key in ["total_bytes", "available_bytes", "limit_bytes", "swap_used_bytes"] {
        assert!(report["host"][key].as_u64().is_some(), "{key}");
    }
    let finding = &report["findings"][0];
    assert_eq!((&finding["code"], &finding["severity"]), (&Json::from("swapping"), &Json::from("error")));
    assert!(finding["text"].is_string() && finding["remedy"].is_string());
    let text = world.run(&["doctor", "--replay", "machine.json"]).ok().stdout;
    assert!(text.contains("error: the host swaps 57.2 MiB/s") && !text.contains('\x1b'), "{text}");
}

#[test]
fn this_machine_is_looked_at() {
    let world = World::bare("");
    let said = world.run(&["doctor", "--seconds", "0.25", "--record", "machine.json", "--json"]).ok();
    assert!(said.json()["host"]["total_bytes"].as_u64().expect("a number") > 0);
    // The same verdict at another place.
    let again = world.run(&["doctor", "--replay", "machine.json", "--json"]).ok();
    assert_eq!(again.stdout, said.stdout);
}

#[test]
fn runs_are_listed_and_their_logs_printed() {
    let world = World::new();
    assert_eq!(world.run(&["status", "--json"]).ok().json(), serde_json::json!([]));
    world.run(&["train", "run.yaml", "--quiet"]).ok();
    let runs = world.run(&["status", "--json"]).ok().json();
    let run = &runs[0];
    assert_eq!((&run["run"], &run["state"], &run["step"]), (&"runs/run".into(), &"finished".into(), &4.into()));
    assert!(run["loss"].as_f64().is_some());
    for key in ["pid", "steps", "left_s"] {
        assert!(run[key].is_number(), "{key}: {run}");
    }
    assert!(world.run(&["status"]).ok().stdout.contains("runs/run  finished"));
    let log = world.text("runs/run/log.txt");
    assert_eq!(
        world.run(&["logs", "runs/run"]).ok().stdout,
        log.lines().filter(|l| !l.is_empty()).fold(String::new(), |all, l| all + l + "\n")
    );
    let last = world.run(&["logs", "runs/run", "-n", "1"]).ok().stdout;
    assert_eq!(last.trim_end(), log.trim_end().lines().last().expect("a line"));
}

/// Following ends with the run.
#[test]
fn following_a_run_that_is_over_ends() {
    let world = World::bare("");
    world.write("old/metrics.jsonl", "{\"step\":1,\"loss\":2.0}\n");
    world.write("old/state.json", r#"{"pid": 1, "state": "finished", "step": 1, "steps": 1}"#);
    world.write("old/log.txt", "one\ntwo\nthr");
    let began = Instant::now();
    assert_eq!(world.run(&["logs", "old", "-f"]).ok().stdout, "one\ntwo\nthr\n");
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_cannot_be_looked_at_is_said() {
    let world = World::bare("");
    let no_run = "error: here holds no run\nhint: name the folder of a run, such as runs/NAME; `plimsoll status` lists \
                  them\n";
    world.write("here/notes.txt", "");
    refused_in(&world, &Refusal { args: &["logs", "here"], code: 2, expected: no_run });
    refused_in(&world, &Refusal { args: &["watch", "here"], code: 2, expected: no_run });
    let none = "error: there are no runs in runs/\nhint: name the folder of a run: plimsoll watch DIR\n";
    refused_in(&world, &Refusal { args: &["watch"], code: 2, expected: none });
    world.write("run/metrics.jsonl", "");
    let no_terminal = "error: `watch` needs a terminal\nhint: `plimsoll logs run -f` follows the log without one\n";
    refused_in(&world, &Refusal { args: &["watch", "run"], code: 2, expected: no_terminal });
    world.write("machine.json", "[1]");
    let said = world.run(&["doctor", "--replay", "machine.json"]);
    assert_eq!(said.code, Some(2));
    assert!(said.stderr.starts_with("error: machine.json is no recording of a machine"), "{}", said.stderr);
}

/// What stands in a run's folder may come from anywhere.
#[test]
fn odd_states_are_shown_and_nothing_more() {
    let world = World::bare("");
    world.write("runs/a/.plimsoll-run", "");
    let lock = std::fs::File::open(world.path("runs/a/.plimsoll-run")).unwrap();
    lock.lock().unwrap();
    for left in ["1e300", "-5.0", "null", "0"] {
        let state = format!(
            r#"{{"pid": 1, "state": "running", "step": 1, "steps": 18446744073709551615, "loss": -1e308, "left_s": {left},
            "host_bytes": 18446744073709551615, "gpu_bytes": 0, "started": 18446744073709551615, "updated": 0}}"#
        );
        world.write("runs/a/state.json", state);
        for args in [&["status"][..], &["status", "--json"]] {
            let said = world.run(args).ok();
            assert!(said.stdout.contains("running"), "{left}: {}", said.stdout);
        }
    }
}
