//! Where a run is written.

use std::path::{Path, PathBuf};

use plimsoll_train::RunFolder;

use crate::config::Resolved;
use crate::failure::Failure;

/// The folder under which runs without `out` are written.
const RUNS: &str = "runs";

/// The run's `out`, or a free name under `runs/`. A folder that already holds a run is refused before any work.
pub fn run_folder(resolved: &Resolved, run_file: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(out) = &resolved.run.out {
        let problem = if out.join("metrics.jsonl").exists() {
            Some("already holds a run")
        } else if out.exists() && !out.is_dir() {
            Some("is not a folder")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(resolved
                .invalid("out", format!("{} {problem}", out.display()))
                .hint("choose another folder with --out"));
        }
        return Ok(out.clone());
    }
    let stem = run_file.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
    let name = resolved.run.name.clone().or(stem).unwrap_or_else(|| "run".into());
    Ok(RunFolder::free_name(Path::new(RUNS), &name))
}
