//! The commands of docs/first-hour.md, in their order, in one folder.

use std::process::Command;

use crate::page::{Block, blocks};
use crate::support::{World, isolate};

const PAGE: &str = include_str!("../../../../docs/first-hour.md");

/// The exit code that a command is expected to have.
fn expected_code(command: &str) -> i32 {
    command.split_once("# exit code ").map_or(0, |(_, code)| code.trim().parse().unwrap())
}

/// With every number alike, and every gap: sizes and times differ from machine to machine.
fn normal(line: &str) -> String {
    let number = |word: &str| {
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return "0".to_owned();
        }
        match word.split_once("step-") {
            Some((before, _)) => format!("{before}step-0"),
            None => word.to_owned(),
        }
    };
    line.split_whitespace().map(number).collect::<Vec<_>>().join(" ")
}

fn run(world: &World, command: &str) -> String {
    let mut shell = Command::new("sh");
    isolate(&mut shell, &world.path("."));
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_plimsoll")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    // Fewer updates and answers than the page has, so that it takes seconds; flags still decide.
    let short = [("PLIMSOLL_SCHEDULE_STEPS", "12"), ("PLIMSOLL_EVAL_SAMPLES", "2"), ("PLIMSOLL_DEVICE", "cpu")];
    shell.envs(short).env("PATH", path).args(["-c", &format!("exec 2>&1\n{command}")]);
    let output = shell.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(expected_code(command)), "{command}\n{said}");
    said
}

#[test]
fn the_first_hour() {
    let world = World::bare("");
    let mut said = String::new();
    let mut commands = 0;
    for Block { kind, lines } in blocks(PAGE) {
        match kind {
            "sh" => {
                said.clear();
                for command in lines {
                    said += &run(&world, command);
                    commands += 1;
                }
            }
            "yaml" => {
                let name = lines[0].strip_prefix("# ").expect("its first line names the file");
                world.write(name, lines.join("\n"));
            }
            "text" => {
                let found: Vec<String> = said.lines().map(normal).collect();
                for line in lines.into_iter().map(normal) {
                    assert!(found.contains(&line), "`{line}` is not in\n{said}");
                }
            }
            "sh no-run" => {}
            _ => panic!("a block of an unknown kind: {kind}"),
        }
    }
    assert!(commands > 15, "the page has its commands");
}
