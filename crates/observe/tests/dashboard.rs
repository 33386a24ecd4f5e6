//! The dashboard answers its own page and nobody else.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use plimsoll_observe::dashboard::Dashboard;
use tempfile::TempDir;

struct Running {
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
    let dashboard = Dashboard::bind(&runs, 0).expect("a free port");
    let address = dashboard.address();
    let (host, token) = address.strip_prefix("http://").and_then(|a| a.split_once("/?token=")).expect("an address");
    let running = Running { _folder: folder, host: host.to_owned(), token: token.to_owned() };
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
        let mut text = String::new();
        self.send(head).read_to_string(&mut text).expect("answered");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains("Content-Security-Policy: default-src 'none'") && head.contains("nosniff"));
        assert!(!head.contains("Access-Control-Allow"));
        (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), body.to_owned())
    }

    fn get(&self, target: &str) -> (u16, String) {
        let cookie = format!("plimsoll_{}={}", self.host.rsplit_once(':').expect("a port").1, self.token);
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: {}\r\nCookie: {cookie}\r\n\r\n", self.host))
    }
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
    assert_eq!(status(&format!("POST /?token={token} HTTP/1.1\r\nHost: {host}")), 405);
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
}

#[test]
fn names_of_runs_are_no_paths() {
    let running = start();
    assert_eq!(running.get("/plan?run=first%20run"), (200, "<p>a plan</p>".to_owned()));
    for name in
        ["..", "../secret.txt", "..%2fsecret.txt", "%2fetc%2fpasswd", "first%20run%2f..%2f..", ".", "", "first run%00"]
    {
        for path in ["/plan", "/api/log", "/api/metrics", "/api/plan", "/api/events"] {
            let (status, body) = running.get(&format!("{path}?run={}", name.replace(' ', "%20")));
            assert_eq!(status, 404, "{path} {name}");
            assert!(!body.contains("secret"));
        }
    }
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
