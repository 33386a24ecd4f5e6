//! `plimsoll logs`, `watch` and `dashboard`: runs, looked at from outside.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_observe::ObserveError;
use plimsoll_observe::dashboard::Dashboard;
use plimsoll_observe::runs::{Follower, RunState, run_status};
use plimsoll_observe::watch::{CardLoad, watch as watch_run};
use plimsoll_run::{CardReading, Failure, Monitor, RUNS};

use crate::args::{DashboardArgs, LogsArgs, WatchArgs};
use crate::beside;
use crate::launcher::Commands;
use crate::printer::Printer;

/// Between two looks at a log.
const PAUSE: Duration = Duration::from_millis(300);

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
    last.iter().for_each(|line| printer.verbatim(line));
    // What a run that has ended wrote last is read once more before the end.
    let mut running = args.follow;
    while running {
        running = run_status(&args.folder).map_err(observed)?.state == RunState::Running;
        follower.read(|line| printer.verbatim(line)).map_err(observed)?;
        if running {
            std::thread::sleep(PAUSE);
        }
    }
    let rest = follower.partial();
    if !rest.is_empty() {
        printer.verbatim(rest);
    }
    Ok(())
}

/// Answers until the process is ended.
pub fn dashboard(args: &DashboardArgs, printer: &Printer) -> Result<(), Failure> {
    if let Some(pid) = args.beside {
        beside::attach(pid)?;
    }
    let launcher = Commands::new(&args.folder, &args.from, printer.language());
    let dashboard =
        Dashboard::bind(&args.folder, args.port, Box::new(launcher), printer.language()).map_err(observed)?;
    printer.verbatim(dashboard.address());
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
    let monitor = Monitor::open();
    let totals: Vec<u64> = (monitor.iter().flat_map(Monitor::inventory)).map(|card| card.total_bytes).collect();
    let mut cards = || {
        let readings = monitor.as_ref().map(Monitor::readings).unwrap_or_default();
        let load = |(reading, total_bytes): (&CardReading, &u64)| CardLoad {
            busy_percent: reading.busy_percent,
            used_bytes: reading.used_bytes,
            total_bytes: *total_bytes,
            power_w: reading.power_w,
            temperature_c: reading.temperature_c,
        };
        readings.iter().zip(&totals).map(load).collect()
    };
    watch_run(&folder, printer.has_colour(), printer.language(), &mut cards).map_err(observed)
}

/// The run that wrote last.
fn newest() -> Result<PathBuf, Failure> {
    let runs = plimsoll_observe::runs::list_runs(Path::new(RUNS)).unwrap_or_default();
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
