//! What the view looks like, to the letter. When a change is meant, `PLIMSOLL_WRITE_SNAPSHOTS=1 cargo test -p
//! plimsoll-observe snapshots` puts the new look into `snapshots/`, to be read before it is committed.

use std::fs;
use std::path::Path;

use plimsoll_speech::Language;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use ratatui::style::{Color, Modifier};
use unicode_width::UnicodeWidthStr;

use super::data::{Course, Watched};
use super::load::{CardLoad, Load};
use super::view::View;
use crate::runs::RunState;

const WRITE: &str = "PLIMSOLL_WRITE_SNAPSHOTS";

const PLAN: &str = r#"{"device": "NVIDIA GeForce RTX 4090", "gpu": {"budget_bytes": 12884901888, "planned_bytes": 11811160064,
    "categories": {"weights": 5368709120, "adapters": 83886080, "gradients": 83886080, "optimizer": 335544320,
    "activations": 4294967296, "loss": 536870912, "cache": 0, "inputs": 10485760, "workspace": 402653184, "transfer": 0,
    "context": 671088640, "recorded": 20971520, "fragmentation": 2097152}}}"#;

/// A run in the middle of its course, on a machine that does not move.
fn watched(folder: &Path) -> Watched {
    let line = |step: u64| {
        let loss = 1.5 + 6.0 / (1.0 + step as f64 / 20.0) + 0.1 * ((step * 7919 % 13) as f64 / 13.0 - 0.5);
        let lr = 2e-4 * (step as f64 / 40.0).min(1.0) * (1.0 - step as f64 / 1000.0);
        format!(
            r#"{{"step":{step},"loss":{loss},"lr":{lr},"step_ms":812.5,"data_wait_ms":1.5,"forward_backward_ms":780.25,"update_ms":28.0,"tokens_per_s":10082.4,"gpu_used_bytes":{},"host_rss_bytes":2147483648}}"#,
            11_500_000_000 + step % 5 * 10_000_000
        ) + "\n"
    };
    let mut metrics: String = (1..=400).map(line).collect();
    metrics += "{\"step\":200,\"eval\":{\"loss\":2.25}}\n{\"step\":400,\"eval\":{\"loss\":1.875}}\n";
    fs::write(folder.join("metrics.jsonl"), metrics).expect("writable");
    fs::write(folder.join("plan.json"), PLAN).expect("writable");
    let log: String = (1..=40).map(|n| format!("line {n} of the log\n")).collect();
    fs::write(folder.join("log.txt"), log).expect("writable");
    let mut watched = Watched::open(folder).expect("a run");
    watched.refresh(Vec::new()).expect("readable");
    watched.status.run = "runs/reward".into();
    (watched.status.state, watched.status.steps, watched.status.left_s) = (RunState::Running, 1000, Some(4210.0));
    // Activations rise and fall, the loss has its time between.
    let tent = |moment: u64| 67_108_864 * (32 - moment.abs_diff(32)) * 2;
    let loss = |moment: u64| if (28..36).contains(&moment) { 536_870_912 } else { 0 };
    let of = |bytes: &dyn Fn(u64) -> u64| (0..64).map(bytes).collect::<Vec<u64>>();
    let categories = [
        ("weights", of(&|_| 5_368_709_120)),
        ("optimizer", of(&|_| 335_544_320)),
        ("activations", of(&tent)),
        ("loss", of(&loss)),
    ];
    let categories = categories.map(|(name, bytes)| (name.to_owned(), bytes)).into();
    let update = [("weights".to_owned(), vec![5_368_709_120; 64])].into();
    let course = |name: &str, categories| Course { name: name.to_owned(), categories };
    watched.courses = vec![course("micro-step", categories), course("update", update)];
    watched.load = Load {
        cpu_percent: Some(37.5),
        cpus: 16.0,
        host_used_bytes: 21 << 30,
        host_bytes: 64 << 30,
        swapped_bytes: 0,
        cards: vec![CardLoad {
            busy_percent: 98.0,
            used_bytes: 11_540_000_000,
            total_bytes: 24 << 30,
            power_w: Some(411.6),
            temperature_c: Some(67.0),
        }],
    };
    watched
}

/// The screen as text; where it is coloured, `{…}` says what begins.
fn screen(view: &mut View, watched: &Watched, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
    terminal.draw(|frame| view.draw(frame, watched)).expect("drawn");
    let buffer = terminal.backend().buffer().clone();
    let mut lines = Vec::new();
    for y in 0..height {
        let (mut line, mut before) = (String::new(), (Color::Reset, Modifier::empty()));
        let mut behind_wide = false;
        for x in 0..width {
            let cell = &buffer[(x, y)];
            // A character of two columns has both.
            let is_behind = behind_wide;
            behind_wide = !is_behind && cell.symbol().width() > 1;
            if is_behind {
                continue;
            }
            if (cell.fg, cell.modifier) != before && cell.symbol() != " " {
                before = (cell.fg, cell.modifier);
                let colour = if cell.fg == Color::Reset { String::new() } else { cell.fg.to_string().to_lowercase() };
                let words = [(Modifier::BOLD, " bold"), (Modifier::DIM, " dim")];
                let more: String = words.iter().filter(|(m, _)| cell.modifier.contains(*m)).map(|(_, w)| *w).collect();
                line += &format!("{{{}}}", format!("{colour}{more}").trim());
            }
            line += cell.symbol();
        }
        lines.push(line.trim_end().to_owned());
    }
    lines.join("\n") + "\n"
}

#[track_caller]
fn check(name: &str, expected: &str, keys: &[char], colour: bool, width: u16) {
    check_in(Language::English, name, expected, keys, colour, width);
}

#[track_caller]
fn check_in(language: Language, name: &str, expected: &str, keys: &[char], colour: bool, width: u16) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut view = View::new(colour, language);
    keys.iter().for_each(|key| view.press(KeyCode::Char(*key)));
    let found = screen(&mut view, &watched(folder.path()), width, if width < 100 { 32 } else { 44 });
    if std::env::var_os(WRITE).is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/watch/snapshots").join(name);
        fs::write(path, &found).expect("writable");
    } else {
        assert!(found == expected, "{name} looks otherwise:\n{found}");
    }
    // What no test asks for, `{` in a text say, would be taken for a style.
    let plain = |line: &str| {
        line.split('{').map(|part| part.split_once('}').map_or(part, |(_, text)| text)).collect::<String>()
    };
    assert!(found.lines().all(|line| plain(line).width() <= usize::from(width)));
    assert_eq!(found.contains("{green"), colour, "colours are there where they are wanted");
}

#[test]
fn eighty_columns() {
    check("80.txt", include_str!("snapshots/80.txt"), &[], false, 80);
    check("80-colour.txt", include_str!("snapshots/80-colour.txt"), &[], true, 80);
    check("80-planned.txt", include_str!("snapshots/80-planned.txt"), &['m'], false, 80);
}

/// Frames and figures stand where they stand in English, though the words are as wide as twice their number.
#[test]
fn in_chinese() {
    let check = |name, expected, width| check_in(Language::Chinese, name, expected, &[], false, width);
    check("80-chinese.txt", include_str!("snapshots/80-chinese.txt"), 80);
    check("160-chinese.txt", include_str!("snapshots/160-chinese.txt"), 160);
}

#[test]
fn a_hundred_and_sixty_columns() {
    check("160.txt", include_str!("snapshots/160.txt"), &[], false, 160);
    check("160-colour.txt", include_str!("snapshots/160-colour.txt"), &[], true, 160);
    check("160-update.txt", include_str!("snapshots/160-update.txt"), &['t'], false, 160);
}
