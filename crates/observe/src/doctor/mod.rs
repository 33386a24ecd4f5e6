//! What is wrong with a machine, from what was seen of it. Pure functions: a recording gives the same verdict as the
//! machine.

mod course;
mod gpu;
mod host;
mod problem;
mod software;
mod text;

use serde::Serialize;

pub use problem::{Problem, Severity};
pub use software::stale_runs;

use crate::machine::Machine;
use course::Course;

/// One finding in words.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub code: &'static str,
    pub severity: Severity,
    /// What is the case, with the figures that say so.
    pub text: String,
    /// What to do about it.
    pub remedy: String,
}

/// All findings, the worst first.
pub fn diagnose(machine: &Machine) -> Vec<Finding> {
    problems(machine).iter().map(text::english).collect()
}

fn problems(machine: &Machine) -> Vec<Problem> {
    let course = Course::of(machine);
    let mut found = software::problems(machine);
    found.extend(host::problems(machine, &course));
    for (index, gpu) in machine.gpus.iter().enumerate() {
        found.extend(gpu::problems(machine, gpu, &course.gpu(index), &course));
    }
    found.sort_by_key(|problem| std::cmp::Reverse(problem.severity()));
    found
}
