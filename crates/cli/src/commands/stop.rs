//! `plimsoll stop`: a polite end to a run, from elsewhere.

use std::time::Duration;

use plimsoll_run::Failure;
use plimsoll_train::{RunPhase, is_under_way, request_stop, run_status};

use crate::args::StopArgs;
use crate::printer::Printer;

/// How often the run is looked at while it saves.
const PAUSE: Duration = Duration::from_millis(100);

pub fn run(args: &StopArgs, printer: &Printer) -> Result<(), Failure> {
    let folder = &args.folder;
    let shown = folder.display();
    let asked =
        request_stop(folder).map_err(|error| Failure::failed(format!("cannot ask {shown} to stop: {error}")))?;
    if !asked {
        return Err(Failure::usage(format!("no run is under way in {shown}")).hint("`plimsoll status` lists runs"));
    }
    if args.no_wait {
        printer.note(format!("asked {shown} to stop"));
        return Ok(());
    }
    loop {
        match run_status(folder) {
            Some(status) if status.state == RunPhase::Running => std::thread::sleep(PAUSE),
            Some(status) if status.state == RunPhase::Failed => {
                return Err(Failure::failed(format!("{shown} ended with an error"))
                    .hint(format!("read {}", folder.join("log.txt").display())));
            }
            Some(status) => {
                printer.note(format!("{shown} stopped after update {} of {}", status.step, status.steps));
                return Ok(());
            }
            // Still being prepared.
            None if is_under_way(folder) => std::thread::sleep(PAUSE),
            None => return Err(Failure::failed(format!("{shown} is gone"))),
        }
    }
}
