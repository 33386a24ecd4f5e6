//! What bounds the speed of a plan, and what would help.

use plimsoll_plan::Report;
use plimsoll_run::config::{Goal, Method, Mode, RunConfig};

/// A limit, in words.
fn named(limit: &str) -> &str {
    match limit {
        "matmul" => "matrix products",
        "memory" => "memory traffic",
        "launch" => "kernel launches",
        limit => limit,
    }
}

/// Where the time of an update goes, the most first.
pub fn sentence(report: &Report) -> String {
    let mut shares: Vec<(&str, f64)> = report.predicted.limits.iter().map(|(limit, share)| (*limit, *share)).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let share = |(limit, share): &(&str, f64)| format!("{} {:.0} %", named(limit), 100.0 * share);
    let shares: Vec<String> = shares.iter().map(share).collect();
    format!("time of an update: {}", shares.join(", "))
}

/// What would make this run faster, where there is something.
pub fn hints(report: &Report, run: &RunConfig) -> Vec<String> {
    let mut hints = Vec::new();
    let on_gpu = report.gpu.planned_bytes > 0;
    let memory = if on_gpu { "GPU" } else { "host" };
    match report.predicted.bound_by {
        "matmul" if matches!(run.method, Method::Full { .. }) => {
            hints.push("`method: lora` leaves out a third of the matrix products".to_owned());
        }
        "attention" => {
            let length = run.data.max_length;
            hints.push(format!("attention grows with the square of data.max_length, which is {length}"));
        }
        "memory" if matches!(run.method, Method::Full { .. }) && report.accumulation == 1 => {
            let sequences = report.effective_batch.sequences;
            hints.push(format!(
                "a batch.sequences above {sequences} shares the optimizer's pass over all weights among more tokens"
            ));
        }
        "launch" if run.mode == Mode::Eager && on_gpu => {
            hints.push("`--mode compiled` launches recorded kernels at once".to_owned());
        }
        "launch" => {
            hints.push(
                "launches take the same time whatever the micro-batch: larger ones need fewer of them".to_owned(),
            );
        }
        _ => {}
    }
    let rebuilds = !report.recompute.is_empty();
    match run.memory.goal {
        Goal::Lowest if rebuilds || report.accumulation > 1 => {
            hints.push("`--goal fastest` uses the whole budget".to_owned());
        }
        Goal::Fastest if report.next_gib.is_empty() => {
            hints.push(format!("more {memory} memory would not make it faster"))
        }
        _ => {}
    }
    hints
}
