//! The dashboard's page, as it has runs planned, started, stopped and resumed, and beside a run.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use plimsoll_train::is_under_way;
use serde_json::{Value as Json, json};

use crate::support::World;

/// A dashboard, ended when dropped.
struct Served {
    child: Child,
    host: String,
    token: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Host and token of an address.
fn parts(address: &str) -> (String, String) {
    let (host, token) = address.trim().strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
    (host.to_owned(), token.split('#').next().unwrap().to_owned())
}

fn ask(host: &str, request: &str) -> Option<(u16, Json)> {
    let mut stream = TcpStream::connect(host).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).unwrap_or(Json::Null)))
}

impl Served {
    fn new(world: &World) -> Self {
        let mut command = world.command(&["dashboard", "runs"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (host, token) = parts(&line);
        Self { child, host, token }
    }

    fn get(&self, path: &str) -> Json {
        let Self { host, token, .. } = self;
        let joint = if path.contains('?') { '&' } else { '?' };
        let request = format!("GET {path}{joint}token={token} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let (status, body) = ask(host, &request).expect("an answer");
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    fn post(&self, path: &str, body: &Json) -> (u16, Json) {
        let Self { host, token, .. } = self;
        let body = body.to_string();
        let length = body.len();
        let headers =
            format!("X-Plimsoll-Token: {token}\r\nContent-Type: application/json\r\nContent-Length: {length}");
        ask(host, &format!("POST {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n\r\n{body}")).expect("an answer")
    }

    /// What is listed of a run, once it is so.
    fn once(&self, name: &str, is_so: impl Fn(&Json) -> bool) -> Json {
        loop {
            let runs = self.get("/api/runs");
            let run = runs.as_array().unwrap().iter().find(|run| run["name"] == name);
            if let Some(run) = run.filter(|run| is_so(&run["status"])) {
                return run["status"].clone();
            }
            let launched = self.get("/api/launched");
            let failed = launched.as_array().unwrap().iter().find(|run| run["name"] == name && run["said"] != "");
            assert!(failed.is_none_or(|run| run["code"] == 130), "{launched}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_run_is_planned_started_stopped_and_resumed() {
    let world = World::new();
    let served = Served::new(&world);
    let choices = served.get("/api/choices");
    let words: Vec<&str> = choices["models"].as_array().unwrap().iter().filter_map(|m| m["word"].as_str()).collect();
    assert_eq!(words[..3], ["quickstart", "file:run.yaml", "folder:model"]);
    assert_eq!(choices["data"], json!(["train.jsonl"]));

    // The plan is that of the command, and moves with the budget.
    let plan = |host_mib: u64| {
        served.post("/api/draft", &json!({"model": "file:run.yaml", "device": "cpu", "host_mib": host_mib}))
    };
    let (status, planned) = plan(512);
    assert_eq!((status, &planned["fits"]), (200, &json!(true)), "{planned}");
    assert_eq!(planned["report"]["host"]["budget_bytes"], 512u64 << 20);
    assert!(!planned["report"]["alternatives"].as_array().unwrap().is_empty());
    let (status, refused) = plan(1);
    assert_eq!((status, &refused["fits"]), (200, &json!(false)));
    assert!(refused["said"].as_str().unwrap().starts_with("error: "), "{refused}");
    assert!(refused["report"]["needed_bytes"].as_u64().unwrap() > 1 << 20);
    // What it says to type does the same.
    assert_eq!(planned["command"], "plimsoll train run.yaml --set device=cpu --set memory.host=512MiB");

    let draft = json!({"model": "file:run.yaml", "name": "mine", "device": "cpu", "steps": 1_000_000});
    assert_eq!(served.post("/api/start", &draft), (202, json!({"run": "mine"})));
    served.once("mine", |run| run["state"] == "running" && run["step"].as_u64() > Some(2));
    assert_eq!(served.post("/api/start", &draft).0, 409, "the name is taken");
    let (status, refused) = served.post("/api/resume", &json!({"run": "mine"}));
    assert_eq!((status, refused["message"].as_str().is_some()), (409, true), "it is under way");
    assert_eq!(served.post("/api/stop", &json!({"run": "mine"})).0, 202);
    let stopped = served.once("mine", |run| run["state"] == "stopped");
    assert_eq!(served.post("/api/stop", &json!({"run": "mine"})).0, 409, "nothing is left to stop");

    assert_eq!(served.post("/api/resume", &json!({"run": "mine"})).0, 202);
    let step = stopped["step"].as_u64().unwrap();
    served.once("mine", |run| run["state"] == "running" && run["step"].as_u64() > Some(step));
    // It does not go with the dashboard.
    drop(served);
    assert!(is_under_way(&world.path("runs/mine")));
    world.run(&["stop", "runs/mine"]).ok();
    assert!(world.losses("runs/mine").len() as u64 > step);
}

#[test]
fn a_run_that_cannot_begin_says_why() {
    let world = World::new();
    world.write("train.jsonl", "");
    let served = Served::new(&world);
    let started = served.post("/api/start", &json!({"model": "file:run.yaml", "device": "cpu"}));
    assert_eq!(started, (202, json!({"run": "run"})));
    let launched = loop {
        let launched = served.get("/api/launched");
        if !launched[0]["code"].is_null() {
            break launched;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!((&launched[0]["name"], &launched[0]["code"]), (&json!("run"), &json!(4)));
    assert!(launched[0]["said"].as_str().unwrap().contains("train.jsonl"), "{launched}");
    assert!(!world.path("runs/run").exists());
    // Nothing but what is on offer is opened.
    for draft in [
        json!({"model": "folder:/etc"}),
        json!({"model": "file:run.yaml", "data": "../train.jsonl"}),
        json!({"model": "file:run.yaml", "name": "../out"}),
    ] {
        assert_eq!(served.post("/api/start", &draft).0, 422, "{draft}");
    }
    assert_eq!(served.get("/api/launched").as_array().unwrap().len(), 1);
}

/// It shows the run from a process of its own, and goes with it.
#[test]
fn a_page_beside_a_run() {
    let world = World::new();
    let args = ["train", "run.yaml", "--out", "runs/one", "--steps", "1000000", "--quiet", "--dashboard"];
    let mut child = world.command(&args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    // A machine short of memory may be warned of before.
    while !line.starts_with("dashboard: ") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "the run ended early");
    }
    let address = line.trim().strip_prefix("dashboard: ").unwrap_or_else(|| panic!("{line}"));
    assert!(address.ends_with("#run=one"), "{address}");
    let (host, token) = parts(address);
    let request = format!("GET /api/runs?token={token} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let (status, runs) = ask(&host, &request).expect("an answer");
    assert_eq!((status, &runs[0]["name"], &runs[0]["status"]["state"]), (200, &json!("one"), &json!("running")));
    // However the run ends.
    child.kill().unwrap();
    child.wait().unwrap();
    while ask(&host, &request).is_some() {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(world.run(&["status", "runs", "--json"]).ok().json()[0]["state"], "failed");
}
