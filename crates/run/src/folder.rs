//! Where a run is written, and where it goes on.

use std::path::{Path, PathBuf};

use plimsoll_train::{Holds, Resume, RunFolder, RunPhase, TrainError, list_runs};

use crate::config::Resolved;
use crate::diagnostics::{at_key, explained};
use crate::failure::Failure;

/// The folder under which runs without `out` are written.
pub const RUNS: &str = "runs";

/// What is to be done about a run that the folder already holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Continue {
    /// Go on with an unfinished run of the same configuration.
    #[default]
    Unfinished,
    /// Go on, also under a changed configuration; a failure if there is nothing to go on with.
    Always,
    /// Never: a folder with a run is refused.
    Never,
}

/// A folder taken for a run, before any work.
pub struct Claimed {
    pub folder: RunFolder,
    /// The checkpoint to go on from.
    pub resume: Option<Resume>,
    pub holds: Holds,
}

/// Takes the run's `out`, or a free name under `runs/`.
pub fn claim(resolved: &Resolved, run_file: Option<&Path>, how: Continue) -> Result<Claimed, Failure> {
    let folder = match &resolved.run.out {
        Some(out) => RunFolder::claim(out),
        None => {
            let stem = run_file.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
            let name = resolved.run.name.clone().or(stem).unwrap_or_else(|| "run".into());
            check_name(resolved)?;
            match how {
                Continue::Always => RunFolder::claim(&newest_unfinished(resolved, &name)?),
                _ => RunFolder::claim_new(Path::new(RUNS), &name),
            }
        }
    };
    let folder = folder.map_err(|error| match error {
        TrainError::NotARun { .. } | TrainError::InUse { .. } => at_key(resolved, "out", &error),
        error => explained(error, resolved),
    })?;
    let holds = folder.holds();
    let shown = folder.path().display();
    let refused = |problem: String| resolved.invalid("out", problem);
    let resume = match (how, holds) {
        (Continue::Never, Holds::Unfinished | Holds::Finished) => {
            return Err(refused(format!("{shown} already holds a run")).hint("choose another folder with --out"));
        }
        (Continue::Unfinished, Holds::Finished) => {
            return Err(refused(format!("{shown} already holds a finished run")).hint(
                "choose another folder with --out, or train it for longer with more schedule.steps and --resume",
            ));
        }
        (_, Holds::Nothing) => None,
        _ => Resume::find(folder.path()).map_err(|error| explained(error, resolved))?,
    };
    if how == Continue::Always && resume.is_none() {
        return Err(refused(format!("{shown} has no checkpoint to resume from")).hint("start the run without --resume"));
    }
    Ok(Claimed { folder, resume, holds })
}

/// A name is that of a folder in `runs/`, not a way to somewhere else.
fn check_name(resolved: &Resolved) -> Result<(), Failure> {
    let Some(name) = resolved.run.name.as_ref().filter(|name| name.contains('/') || name.starts_with('.')) else {
        return Ok(());
    };
    let message = format!("`name` is {name}, but a run's folder of that name is made in {RUNS}");
    Err(resolved.invalid("name", message).hint("use a plain name, or choose the folder itself with --out"))
}

/// Of the runs of that name, the one that was at work last and is not finished.
fn newest_unfinished(resolved: &Resolved, name: &str) -> Result<PathBuf, Failure> {
    let is_of_name = |path: &Path| {
        let rest = path.file_name().and_then(|found| found.to_str()).and_then(|found| found.strip_prefix(name));
        rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('-').is_some_and(|n| n.parse::<u64>().is_ok()))
    };
    let runs = list_runs(Path::new(RUNS)).into_iter();
    let open = runs.filter(|(path, status)| is_of_name(path) && status.state != RunPhase::Finished);
    let newest = open.max_by_key(|(_, status)| (status.state != RunPhase::Running, status.updated));
    newest.map(|(path, _)| path).ok_or_else(|| {
        resolved
            .invalid("out", format!("there is no unfinished run named {name} in {RUNS} to resume"))
            .hint("name the run's folder with --out, or start the run without --resume")
    })
}
