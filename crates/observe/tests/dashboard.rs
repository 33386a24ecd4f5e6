//! The dashboard answers its own page and nobody else, and has nothing done for others.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_observe::dashboard::{Choices, Dashboard, Draft, Launched, Launcher, Planned, Refused};
use plimsoll_speech::Language;
use serde_json::json;
use tempfile::TempDir;

/// Writes down what it is asked for.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<String>>>);

impl Asked {
    fn note(&self, what: String) {
        self.0.lock().expect("whole").push(what);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().expect("whole").clone()
    }
}

fn name(run: &Path) -> String {
    run.file_name().expect("a name").to_string_lossy().into_owned()
}

impl Launcher for Asked {
    fn choices(&self) -> Choices {
        Choices { data: vec!["a.jsonl".to_owned()], ..Choices::default() }
    }

    fn plan(&self, draft: &Draft) -> Result<Planned, Refused> {
        self.note(format!("plan {} {:?}", draft.model, draft.host_mib));
        Ok(Planned { fits: true, command: "plimsoll train".to_owned(), ..Planned::default() })
    }

    fn start(&self, draft: &Draft) -> Result<String, Refused> {
        self.note(format!("start {}", draft.model));
        if draft.name == "taken" { Err(Refused::conflict("it is there")) } else { Ok(draft.name.clone()) }
    }

    fn stop(&self, run: &Path) -> Result<(), Refused> {
        self.note(format!("stop {}", name(run)));
        Ok(())
    }

    fn resume(&self, run: &Path) -> Result<(), Refused> {
        self.note(format!("resume {}", name(run)));
        Ok(())
    }

    fn launched(&self) -> Vec<Launched> {
        vec![Launched { name: "gone".to_owned(), code: Some(2), said: "error: no".to_owned() }]
    }
}

struct Running {
    asked: Asked,
    _folder: TempDir,
    host: String,
    token: String,
}

fn metrics(folder: &Path, name: &str, steps: u64) {
    let run = folder.join(name);
    fs::create_dir_all(&run).expect("writable");
    let line = |step| format!("{{\"step\":{step},\"loss\":{}.5,\"tokens_per_s\":10}}\n", step);
    fs::write(run.join("metrics.jsonl"), (1..=steps).map(line).collect::<String>()).expect("writable");
}

fn start() -> Running {
    let folder = tempfile::tempdir().expect("a folder");
    let runs = folder.path().join("runs");
    metrics(&runs, "first run", 3);
    fs::write(runs.join("first run/plan.html"), "<p>a plan</p>").expect("writable");
    fs::write(folder.path().join("secret.txt"), "secret").expect("writable");
    fs::write(runs.join("first run/samples.json"), r#"[{"prompt": "1?", "answer": "1", "expected": "2"}]"#)
        .expect("writable");
    let asked = Asked::default();
    let dashboard = Dashboard::bind(&runs, 0, Box::new(asked.clone()), Language::English).expect("a free port");
    let address = dashboard.address();
    let (host, token) = address.strip_prefix("http://").and_then(|a| a.split_once("/?token=")).expect("an address");
    let running = Running { asked, _folder: folder, host: host.to_owned(), token: token.to_owned() };
    std::thread::spawn(move || dashboard.serve());
    running
}

impl Running {
    fn send(&self, head: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.host).expect("listening");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
        stream.write_all(head.as_bytes()).expect("sent");
        stream
    }

    /// Status and body.
    fn ask(&self, head: &str) -> (u16, String) {
        let (head, body) = self.answer(head);
        (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body)
    }

    /// Head and body.
    fn answer(&self, head: &str) -> (String, String) {
        let mut text = String::new();
        self.send(head).read_to_string(&mut text).expect("answered");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains("default-src 'none'") && head.contains("nosniff"));
        assert!(!head.contains("Access-Control-Allow"));
        (head.to_owned(), body.to_owned())
    }

    /// As the page asks for something to be done.
    fn post(&self, path: &str, body: &str) -> (u16, String) {
        let token = format!("X-Plimsoll-Token: {}", self.token);
        self.post_with(path, &[&token, "Content-Type: application/json"], body)
    }

    fn post_with(&self, path: &str, headers: &[&str], body: &str) -> (u16, String) {
        let Self { host, .. } = self;
        let headers = headers.join("\r\n");
        let length = body.len();
        self.ask(&format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
    }

    fn get(&self, target: &str) -> (u16, String) {
        let cookie = format!("plimsoll_{}={}", self.host.rsplit_once(':').expect("a port").1, self.token);
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: {}\r\nCookie: {cookie}\r\n\r\n", self.host))
    }
}

#[test]
fn the_page_speaks_the_language_that_is_asked_for() {
    let running = start();
    let english = running.get("/").1;
    assert!(english.contains("<html lang=\"en\">") && english.contains("WORDS = {},"), "{english}");
    let chinese = running.get("/?lang=zh").1;
    assert!(chinese.contains("<html lang=\"zh-CN\">") && chinese.contains("LANGUAGE = \"zh\""), "{chinese}");
    assert!(chinese.contains("\"Runs\":\"运行\"") && chinese.contains("\"weights\":\"权重\""), "{chinese}");
    let stopped = |target: &str| running.post(target, r#"{"run": "absent"}"#);
    assert_eq!(stopped("/api/stop"), (404, r#"{"message":"there is no such run"}"#.to_owned()));
    assert_eq!(stopped("/api/stop?lang=zh"), (404, r#"{"message":"没有这个运行"}"#.to_owned()));
}

#[test]
fn only_who_knows_the_token_is_answered() {
    let running = start();
    let Running { host, token, .. } = &running;
    let status = |head: &str| running.ask(&format!("{head}\r\n\r\n")).0;
    assert_eq!(status(&format!("GET /?token={token} HTTP/1.1\r\nHost: {host}")), 200);
    for path in ["/", "/api/runs", "/plan?run=first%20run", "/api/events?run=first%20run", "/nothing"] {
        assert_eq!(status(&format!("GET {path} HTTP/1.1\r\nHost: {host}")), 401, "{path}");
    }
    let wrong = token.replace(|c: char| c.is_ascii_digit(), "f") + "0";
    assert_eq!(status(&format!("GET /?token={} HTTP/1.1\r\nHost: {host}", &wrong[1..])), 401);
    assert_eq!(status(&format!("GET /?token= HTTP/1.1\r\nHost: {host}")), 401);
    assert_eq!(status(&format!("PUT /?token={token} HTTP/1.1\r\nHost: {host}")), 405);
}

/// What another site's page could make a browser send, even with the token.
#[test]
fn other_sites_are_refused() {
    let running = start();
    let Running { host, token, .. } = &running;
    let status = |headers: &str| running.ask(&format!("GET /api/runs?token={token} HTTP/1.1\r\n{headers}\r\n\r\n")).0;
    assert_eq!(status(&format!("Host: {host}\r\nOrigin: http://{host}")), 200);
    assert_eq!(status("Host: evil.example"), 421);
    assert_eq!(status(&format!("Host: evil.example:{}", host.rsplit_once(':').expect("a port").1)), 421);
    assert_eq!(status("Accept: */*"), 421);
    assert_eq!(status(&format!("Host: {host}\r\nHost: evil.example")), 421);
    assert_eq!(status(&format!("Host: {host}\r\nOrigin: http://evil.example")), 403);
    assert_eq!(status(&format!("Host: {host}\r\nOrigin: null")), 403);
    assert_eq!(status(&format!("Host: {host}\r\nSec-Fetch-Site: cross-site")), 403);
    assert_eq!(status(&format!("Host: {host}\r\nSec-Fetch-Site: same-site")), 403, "another port of this machine");
    assert_eq!(status(&format!("Host: {host}\r\nSec-Fetch-Site: same-origin")), 200);
}

#[test]
fn names_of_runs_are_no_paths() {
    let running = start();
    assert_eq!(running.get("/plan?run=first%20run"), (200, "<p>a plan</p>".to_owned()));
    for name in
        ["..", "../secret.txt", "..%2fsecret.txt", "%2fetc%2fpasswd", "first%20run%2f..%2f..", ".", "", "first run%00"]
    {
        for path in ["/plan", "/api/log", "/api/metrics", "/api/plan", "/api/samples", "/api/events"] {
            let (status, body) = running.get(&format!("{path}?run={}", name.replace(' ', "%20")));
            assert_eq!(status, 404, "{path} {name}");
            assert!(!body.contains("secret"));
        }
        for path in ["/api/stop", "/api/resume"] {
            let (status, body) = running.post(path, &json!({ "run": name }).to_string());
            assert_eq!((status, body.contains("no such run")), (404, true), "{path} {name}");
        }
    }
    assert_eq!(running.asked.all(), [""; 0]);
    for path in ["/../secret.txt", "/runs/first%20run/metrics.jsonl", "//", "/plan.html"] {
        assert_eq!(running.get(path).0, 404, "{path}");
    }
}

#[test]
fn curves_come_at_once_and_then_as_they_grow() {
    let running = start();
    let (status, body) = running.get("/api/metrics?run=first%20run");
    assert_eq!(status, 200);
    let curves: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(curves["points"]["loss"], serde_json::json!([1.5, 2.5, 3.5]));
    let target = format!("/api/events?run=first%20run&after=2&token={}", running.token);
    let stream = running.send(&format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", running.host));
    let mut events = BufReader::new(stream).lines().map_while(Result::ok);
    let mut steps = || {
        let line = events.find(|line| line.starts_with("data: ")).expect("an event");
        let event: serde_json::Value = serde_json::from_str(&line["data: ".len()..]).expect("JSON");
        event["points"]["step"].clone()
    };
    assert_eq!(steps(), serde_json::json!([3]));
    metrics(&running._folder.path().join("runs"), "first run", 5);
    let grown = (0..3).map(|_| steps()).find(|steps| *steps != serde_json::json!([]));
    assert_eq!(grown, Some(serde_json::json!([4, 5])));
}

const DRAFT: &str = r#"{"model": "quickstart", "name": "new", "host_mib": 512}"#;

#[test]
fn what_is_posted_is_done() {
    let running = start();
    let json = |(status, body): (u16, String)| (status, serde_json::from_str(&body).unwrap_or(serde_json::Value::Null));
    let planned = json(running.post("/api/draft", DRAFT));
    assert_eq!((planned.0, &planned.1["fits"], &planned.1["command"]), (200, &json!(true), &json!("plimsoll train")));
    assert_eq!(json(running.post("/api/start", DRAFT)), (202, json!({"run": "new"})));
    let taken = json(running.post("/api/start", r#"{"model": "quickstart", "name": "taken"}"#));
    assert_eq!(taken, (409, json!({"message": "it is there"})));
    assert_eq!(running.post("/api/stop", r#"{"run": "first run"}"#).0, 202);
    assert_eq!(running.post("/api/resume", r#"{"run": "first run"}"#).0, 202);
    let expected =
        ["plan quickstart Some(512)", "start quickstart", "start quickstart", "stop first run", "resume first run"];
    assert_eq!(running.asked.all(), expected);
    for (path, body) in [
        ("/api/draft", "not JSON"),
        ("/api/draft", r#"{"model": "quickstart", "out": "/etc"}"#),
        ("/api/draft", r#"{"model": ["quickstart"]}"#),
        ("/api/stop", r#"{"run": "first run", "force": true}"#),
        ("/api/resume", ""),
    ] {
        assert_eq!(running.post(path, body).0, 422, "{path} {body}");
    }
    assert_eq!(running.post("/api/runs", "{}").0, 404, "nothing is done there");
    assert_eq!(running.asked.all().len(), expected.len());
    let (status, choices) = json(running.get("/api/choices"));
    assert_eq!((status, &choices["data"]), (200, &json!(["a.jsonl"])));
    assert_eq!(json(running.get("/api/launched")).1[0]["said"], "error: no");
    assert_eq!(json(running.get("/api/samples?run=first%20run")).1[0]["expected"], "2");
}

/// What another page of this machine's could make a browser send: cookies go to all ports alike.
#[test]
fn nothing_is_done_for_another_page() {
    let running = start();
    let Running { host, token, .. } = &running;
    let (_, port) = host.rsplit_once(':').expect("a port");
    let (cookie, json) = (format!("Cookie: plimsoll_{port}={token}"), "Content-Type: application/json");
    let header = format!("X-Plimsoll-Token: {token}");
    for path in ["/api/draft", "/api/start", "/api/stop", "/api/resume"] {
        let status = |headers: &[&str]| running.post_with(path, headers, DRAFT).0;
        assert_eq!(status(&[&cookie, json]), 401, "a cookie is not enough");
        assert_eq!(running.post_with(&format!("{path}?token={token}"), &[json], DRAFT).0, 401, "nor is the address");
        assert_eq!(status(&[&format!("{header}0"), json]), 401);
        assert_eq!(status(&[&header, &header, json]), 401);
        assert_eq!(status(&[&header, "Content-Type: text/plain"]), 415, "forms can send that");
        assert_eq!(status(&[&header, json, "Origin: http://127.0.0.1:1"]), 403);
        assert_eq!(status(&[&header, json, "Sec-Fetch-Site: same-site"]), 403);
        assert_eq!(running.get(path).0, 404, "nothing is done by looking");
    }
    assert_eq!(running.asked.all(), [""; 0]);
}

/// The page has the token, which is why nothing that was found in a folder may run as part of it.
#[test]
fn pages_of_runs_are_shut_in() {
    let running = start();
    let Running { host, token, .. } = &running;
    let answer = |path: &str| running.answer(&format!("GET {path}token={token} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    let (head, page) = answer("/?");
    assert!(head.contains("Set-Cookie: ") && !head.contains("sandbox"), "{head}");
    assert!(page.contains(token.as_str()) && !page.contains("{{"), "all places are filled");
    for address in ["http://", "https://", "@import"] {
        assert!(!page.contains(address), "the page asks for nothing elsewhere: {address}");
    }
    let (head, page) = answer("/plan?run=first%20run&");
    assert!(head.contains("Content-Security-Policy: sandbox allow-scripts;") && !head.contains("allow-same-origin"));
    assert_eq!(page, "<p>a plan</p>");
}
