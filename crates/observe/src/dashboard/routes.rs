//! What there is to ask for.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use plimsoll_speech::Language;
use serde_json::{Value, json};

use super::Request;
use super::answer::{Answer, stream_head};
use super::spoken::{spoken, words};
use crate::picture::COLOURS;
use crate::runs::{Follower, Metrics, StepPoint, list_runs, run_status};

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 3] = [include_str!("page.js"), include_str!("start.js"), include_str!("main.js")];
/// Curves of more points are thinned before they are sent.
const POINTS_MAX: usize = 4000;
const LOG_BYTES: u64 = 64 << 10;
/// Between two looks at a run that is followed.
const PAUSE: Duration = Duration::from_millis(1000);

/// The page with all it needs inside.
pub fn page(token: &str, language: Language) -> Answer {
    let scripts = SCRIPTS.concat();
    let words = json!(words(&scripts, language)).to_string();
    let script = scripts.replace("{{colours}}", &json!(COLOURS).to_string());
    let script = script.replace("{{words}}", &words).replace("{{language}}", language.code());
    let page = PAGE.replace("{{style}}", STYLE).replace("{{script}}", &script).replace("{{tag}}", language.tag());
    Answer::html(page.replace("{{token}}", token))
}

pub fn answer(runs: &Path, request: &Request, language: Language) -> Answer {
    match request.path.as_str() {
        "/api/runs" => match list_runs(runs) {
            Ok(list) => {
                let named = list.iter().map(|status| (name_of(&status.run), status));
                Answer::json(&named.map(|(name, status)| json!({"name": name, "status": status})).collect::<Vec<_>>())
            }
            Err(_) => Answer::json(&json!([])),
        },
        "/api/metrics" => with_run(runs, request, |run| {
            let mut metrics = Metrics::of(run);
            metrics.update().ok()?;
            Some(Answer::json(&curves(&metrics)))
        }),
        "/api/plan" => with_run(runs, request, |run| {
            let plan: Value = serde_json::from_slice(&fs::read(run.join("plan.json")).ok()?).ok()?;
            Some(Answer::json(&spoken(&plan, language)))
        }),
        "/api/log" => with_run(runs, request, |run| {
            let mut lines = Vec::new();
            let mut log = Follower::new(&run.join("log.txt"));
            log.skip_to_last(LOG_BYTES).and_then(|()| log.read(|line| lines.push(line.to_owned()))).ok()?;
            Some(Answer::text(lines.join("\n")))
        }),
        "/api/samples" => with_run(runs, request, |run| {
            let samples: Value = serde_json::from_slice(&fs::read(run.join("samples.json")).ok()?).ok()?;
            Some(Answer::json(&samples))
        }),
        "/plan" => with_run(runs, request, |run| Some(Answer::foreign_html(fs::read(run.join("plan.html")).ok()?))),
        _ => Answer::refusal(404),
    }
}

/// Every new update of a run, as it is written, until the client goes away.
pub fn stream(runs: &Path, request: &Request, out: &mut impl Write) -> io::Result<()> {
    let Some(run) = request.query("run").and_then(|name| find(runs, name)) else {
        return Answer::refusal(404).write(out);
    };
    out.write_all(stream_head().as_bytes())?;
    let mut metrics = Metrics::of(&run);
    let mut last = request.query("after").and_then(|step| step.parse().ok()).unwrap_or(0);
    loop {
        if metrics.update().is_err() {
            return Ok(());
        }
        let new: Vec<StepPoint> = metrics.steps.iter().filter(|point| point.step > last).copied().collect();
        last = new.last().map_or(last, |point| point.step);
        let evals: Vec<_> = metrics.evals.iter().map(|eval| json!([eval.step, eval.loss])).collect();
        let event = json!({"points": columns(&new), "evals": evals, "status": run_status(&run).ok()});
        write!(out, "data: {event}\n\n")?;
        out.flush()?;
        std::thread::sleep(PAUSE);
    }
}

fn with_run(runs: &Path, request: &Request, answer: impl FnOnce(&Path) -> Option<Answer>) -> Answer {
    request.query("run").and_then(|name| find(runs, name)).and_then(|run| answer(&run)).unwrap_or(Answer::refusal(404))
}

/// The run of that name. Names are compared with those that are there and never made into a path.
pub fn find(runs: &Path, wanted: &str) -> Option<PathBuf> {
    list_runs(runs).ok()?.into_iter().map(|status| status.run).find(|run| name_of(run) == wanted)
}

fn name_of(run: &Path) -> String {
    run.file_name().map_or_else(|| run.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn curves(metrics: &Metrics) -> Value {
    let stretch = metrics.steps.len().div_ceil(POINTS_MAX).max(1);
    let thinned: Vec<StepPoint> = metrics.steps.chunks(stretch).map(mean).collect();
    let evals: Vec<_> = metrics.evals.iter().map(|eval| json!([eval.step, eval.loss])).collect();
    json!({"points": columns(&thinned), "evals": evals, "updates": metrics.steps.len()})
}

/// One point for several; its memory is the most of theirs.
fn mean(points: &[StepPoint]) -> StepPoint {
    let of = |figure: fn(&StepPoint) -> f64| {
        let finite: Vec<f64> = points.iter().map(figure).filter(|value| value.is_finite()).collect();
        if finite.is_empty() { f64::NAN } else { finite.iter().sum::<f64>() / finite.len() as f64 }
    };
    StepPoint {
        step: points.last().map_or(0, |point| point.step),
        loss: of(|p| p.loss),
        lr: of(|p| p.lr),
        grad_norm: of(|p| p.grad_norm),
        tokens_per_s: of(|p| p.tokens_per_s),
        step_ms: of(|p| p.step_ms),
        data_wait_ms: of(|p| p.data_wait_ms),
        forward_backward_ms: of(|p| p.forward_backward_ms),
        update_ms: of(|p| p.update_ms),
        gpu_used_bytes: points.iter().map(|p| p.gpu_used_bytes).max().unwrap_or(0),
        host_rss_bytes: points.iter().map(|p| p.host_rss_bytes).max().unwrap_or(0),
    }
}

fn columns(points: &[StepPoint]) -> Value {
    let used = |p: &StepPoint| if p.gpu_used_bytes > 0 { p.gpu_used_bytes } else { p.host_rss_bytes };
    json!({
        "step": points.iter().map(|p| p.step).collect::<Vec<_>>(),
        "loss": points.iter().map(|p| p.loss).collect::<Vec<_>>(),
        "lr": points.iter().map(|p| p.lr).collect::<Vec<_>>(),
        "tokensPerS": points.iter().map(|p| p.tokens_per_s).collect::<Vec<_>>(),
        "stepMs": points.iter().map(|p| p.step_ms).collect::<Vec<_>>(),
        "waitMs": points.iter().map(|p| p.data_wait_ms).collect::<Vec<_>>(),
        "computeMs": points.iter().map(|p| p.forward_backward_ms).collect::<Vec<_>>(),
        "updateMs": points.iter().map(|p| p.update_ms).collect::<Vec<_>>(),
        "used": points.iter().map(used).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_runs_are_thinned_and_keep_their_peak() {
        let point = |step: u64| StepPoint { step, loss: 2.0, host_rss_bytes: step % 7, ..StepPoint::default() };
        let mut metrics = Metrics::of(Path::new("nowhere"));
        metrics.steps = (1..=100_000).map(point).collect();
        let curves = curves(&metrics);
        let column = |name: &str| curves["points"][name].as_array().expect("a column").clone();
        assert_eq!((column("loss").len(), curves["updates"].as_u64()), (POINTS_MAX, Some(100_000)));
        assert!(column("used").iter().all(|used| used == 6) && column("loss").iter().all(|loss| loss == 2.0));
        assert_eq!(column("step").last(), Some(&json!(100_000)));
    }
}
