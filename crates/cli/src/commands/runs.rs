//! `plimsoll status`, `logs` and `watch`: runs, looked at from outside.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_observe::ObserveError;
use plimsoll_observe::dashboard::Dashboard;
use plimsoll_observe::runs::{Follower, RunState, RunStatus, list_runs, run_status};
use plimsoll_observe::watch::watch as watch_run;
use plimsoll_run::{Failure, bytes, duration};

use super::RUNS;
use crate::args::{DashboardArgs, LogsArgs, StatusArgs, WatchArgs};
use crate::printer::{Column, Printer, Table};

/// Between two looks at a log.
const PAUSE: Duration = Duration::from_millis(300);

pub fn status(args: &StatusArgs, printer: &Printer) -> Result<(), Failure> {
    let mut runs = Vec::new();
    if args.folders.is_empty() {
        // Where nothing was ever run, there is nothing to list.
        if Path::new(RUNS).is_dir() {
            runs = list_runs(Path::new(RUNS)).map_err(observed)?;
        }
    }
    for folder in &args.folders {
        runs.extend(list_runs(folder).map_err(observed)?);
    }
    if printer.is_json() {
        printer.json(&runs);
    } else if runs.is_empty() {
        printer.note("no runs");
    } else {
        printer.data(table(&runs));
    }
    Ok(())
}

fn table(runs: &[RunStatus]) -> Table {
    let columns = [Column::left("run"), Column::left("state"), Column::right("step"), Column::right("loss")];
    let more = [Column::right("memory"), Column::right("left"), Column::right("process")];
    let mut table = Table::new(&[&columns[..], &more].concat());
    for run in runs {
        let of = if run.steps > 0 { format!(" / {}", run.steps) } else { String::new() };
        let running = run.state == RunState::Running;
        let used = if run.gpu_used_bytes > 0 { run.gpu_used_bytes } else { run.host_used_bytes };
        table.row([
            run.run.display().to_string(),
            state(run.state).to_owned(),
            format!("{}{of}", run.step),
            run.loss.map_or_else(String::new, |loss| format!("{loss:.4}")),
            if used > 0 { bytes(used) } else { String::new() },
            run.left_s
                .filter(|_| running)
                .map_or_else(String::new, |left| duration(Duration::from_secs_f64(left.max(0.0)))),
            if running && run.pid > 0 { run.pid.to_string() } else { String::new() },
        ]);
    }
    table
}

fn state(state: RunState) -> &'static str {
    match state {
        RunState::Running => "running",
        RunState::Stopped => "stopped",
        RunState::Finished => "finished",
        RunState::Failed => "failed",
    }
}

pub fn logs(args: &LogsArgs, printer: &Printer) -> Result<(), Failure> {
    run_status(&args.folder).map_err(observed)?;
    let mut follower = Follower::new(&args.folder.join("log.txt"));
    let mut last: VecDeque<String> = VecDeque::new();
    let lines = args.lines.unwrap_or(usize::MAX);
    follower
        .read(|line| {
            if last.len() == lines {
                last.pop_front();
            }
            if lines > 0 {
                last.push_back(line.to_owned());
            }
        })
        .map_err(observed)?;
    last.iter().for_each(|line| printer.data(line));
    // What a run that has ended wrote last is read once more before the end.
    let mut running = args.follow;
    while running {
        running = run_status(&args.folder).map_err(observed)?.state == RunState::Running;
        follower.read(|line| printer.data(line)).map_err(observed)?;
        if running {
            std::thread::sleep(PAUSE);
        }
    }
    let rest = follower.partial();
    if !rest.is_empty() {
        printer.data(rest);
    }
    Ok(())
}

/// Answers until the process is ended.
pub fn dashboard(args: &DashboardArgs, printer: &Printer) -> Result<(), Failure> {
    let dashboard = Dashboard::bind(&args.folder, args.port).map_err(observed)?;
    printer.data(dashboard.address());
    printer.note("open this address in a browser on this machine; Ctrl-C ends the dashboard and no run");
    dashboard.serve().map_err(observed)
}

pub fn watch(args: &WatchArgs, printer: &Printer) -> Result<(), Failure> {
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => newest()?,
    };
    run_status(&folder).map_err(observed)?;
    if !std::io::stdout().is_terminal() {
        let command = format!("plimsoll logs {} -f", folder.display());
        return Err(Failure::usage("`watch` needs a terminal").hint(format!("`{command}` follows the log without one")));
    }
    watch_run(&folder, printer.has_colour()).map_err(observed)
}

/// The run that wrote last.
fn newest() -> Result<PathBuf, Failure> {
    let runs = list_runs(Path::new(RUNS)).unwrap_or_default();
    let newest = runs.into_iter().min_by(|a, b| a.silent_s.total_cmp(&b.silent_s));
    newest.map(|run| run.run).ok_or_else(|| {
        Failure::usage(format!("there are no runs in {RUNS}/")).hint("name the folder of a run: plimsoll watch DIR")
    })
}

fn observed(error: ObserveError) -> Failure {
    match error {
        ObserveError::Io { .. } => Failure::failed(error.to_string()),
        ObserveError::NoRun { ref path } => Failure::usage(format!("{} holds no run", path.display()))
            .hint("name the folder of a run, such as runs/NAME; `plimsoll status` lists them"),
    }
}
