//! `plimsoll status`: runs, as their folders tell.

use std::path::Path;

use plimsoll_run::{Failure, RUNS, bytes, duration, seconds};
use plimsoll_train::{RunPhase, list_runs};
use serde_json::json;

use crate::args::StatusArgs;
use crate::printer::{Column, Printer, Table};

pub fn run(args: &StatusArgs, printer: &Printer) -> Result<(), Failure> {
    let folder = args.folder.as_deref().unwrap_or(Path::new(RUNS));
    let runs = list_runs(folder);
    if printer.is_json() {
        let entry = |(path, status): &(_, plimsoll_train::RunStatus)| {
            json!({
                "run": path,
                "pid": status.pid,
                "state": status.state,
                "step": status.step,
                "steps": status.steps,
                "loss": status.loss,
                "left_s": status.left_s.filter(|_| status.state == RunPhase::Running).unwrap_or(0.0),
                "host_bytes": status.host_bytes,
                "gpu_bytes": status.gpu_bytes,
            })
        };
        printer.json(&runs.iter().map(entry).collect::<Vec<_>>());
        return Ok(());
    }
    if runs.is_empty() {
        printer.note(format!("no runs in {}", folder.display()));
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::names("run"),
        Column::left("state"),
        Column::right("step"),
        Column::right("loss"),
        Column::right("memory"),
        Column::right("time left"),
    ]);
    for (path, status) in &runs {
        let running = status.state == RunPhase::Running;
        table.row([
            path.display().to_string(),
            state(status.state).to_owned(),
            format!("{}/{}", status.step, status.steps),
            status.loss.map_or_else(String::new, |loss| format!("{loss:.4}")),
            if running { bytes(status.gpu_bytes.max(status.host_bytes)) } else { String::new() },
            status.left_s.filter(|_| running).map_or_else(String::new, |s| duration(seconds(s))),
        ]);
    }
    printer.tables(&[table]);
    Ok(())
}

fn state(phase: RunPhase) -> &'static str {
    match phase {
        RunPhase::Running => "running",
        RunPhase::Stopped => "stopped",
        RunPhase::Finished => "finished",
        RunPhase::Failed => "failed",
    }
}
