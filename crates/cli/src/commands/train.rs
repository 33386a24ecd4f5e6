//! `plimsoll train`.

use std::path::Path;
use std::time::{Duration, Instant};

use plimsoll_run::{
    Continue, Failure, Measured, Options, PreparedRun, Sample, count_exact, duration, prepare, seconds,
};
use plimsoll_train::{Best, Event, Outcome, Resumed, RunFolder, StepEvent};
use serde_json::json;

use plimsoll_observe::picture::{PlanPicture, courses, html};

use super::plan::draw;
use super::print_origins;
use crate::args::TrainArgs;
use crate::beside::Page;
use crate::curves::Curves;
use crate::observer::Preparing;
use crate::printer::{Column, EvalLine, Pace, Printer, StepLine, StepLog, Table};
use crate::{interrupt, tables};

pub fn run(args: &TrainArgs, printer: &Printer) -> Result<(), Failure> {
    let began = Instant::now();
    let file = args.file.as_deref();
    let resolved = args.common.resolve(file)?;
    if args.common.origins {
        print_origins(&resolved, printer);
    }
    let how = match (args.resume, args.fresh) {
        (true, _) => Continue::Always,
        (_, true) => Continue::Never,
        _ => Continue::Unfinished,
    };
    let options = Options { resume: how, ..args.common.options(file) };
    let mut preparing = Preparing::new(printer);
    let mut prepared = prepare(&resolved, options, &mut preparing)?;
    let stop = interrupt::listen(printer.language());
    let mut folder = prepared.begin()?;
    if let Some(picture) = prepared.picture.take() {
        let name = folder.path().file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let plan = PlanPicture { name: &name, report: &prepared.report, picture: &picture };
        draw(&folder.path().join("plan.html"), html(&[plan], printer.language()))?;
        draw(&folder.path().join("memory.json"), courses(&plan).to_string())?;
    }
    // Ends with this function.
    let _page = args.dashboard.then(|| open_page(folder.path(), printer));
    let update = seconds(prepared.report.predicted.step_ms / 1e3);
    let pace = Pace { updates: prepared.updates, every: resolved.run.log.every, update };
    let mut log = printer.steps(pace, folder.open_log()?);
    let (shown, later) = prepared.notes.split_at(preparing.notes_shown());
    log.record_plan(shown, &tables::plan(&prepared.report));
    later.iter().for_each(|note| log.remark(note));
    log.example(&prepared.data.first_example()?);
    let mut curves = Curves::open(folder.path(), &resolved, &mut log);
    let outcome = prepared.train(&mut folder, stop, &mut |event| {
        show(&mut log, event);
        curves.record(event, &mut log);
    });
    log.finish();
    curves.finish(&outcome, &mut log);
    let outcome = outcome.map_err(|failure| logged(failure, &mut log))?;
    let measured = prepared.measured();
    remarks(&prepared, &outcome, measured, &mut log);
    // Whoever interrupts does not want to wait for answers.
    let samples = if outcome.interrupted { Vec::new() } else { prepared.samples()? };
    keep_samples(&folder, &samples, &mut log);
    if printer.is_json() {
        printer.json(&summary(&outcome, &samples, measured, &prepared));
    } else {
        conclude(&outcome, &samples, began.elapsed(), &mut log);
    }
    if outcome.interrupted {
        let message = format!(
            "interrupted after update {} of {}; the state is saved in {}",
            outcome.steps,
            prepared.updates,
            outcome.saved.display()
        );
        let hint = format!("resume it with the same command and --out {}", folder.path().display());
        return Err(logged(Failure::interrupted(message).hint(hint), &mut log));
    }
    Ok(())
}

/// A process beside this one that shows the run. A run does not fail for want of it.
fn open_page(run: &Path, printer: &Printer) -> Option<Page> {
    match Page::open(run, printer.language()) {
        Ok(page) => {
            printer.asked(format!("dashboard: {}", page.address));
            Some(page)
        }
        Err(error) => {
            printer.warning(format!("there is no dashboard: {error}"));
            None
        }
    }
}

/// The answers, for whoever looks at the run later.
fn keep_samples(folder: &RunFolder, samples: &[Sample], log: &mut StepLog) {
    if samples.is_empty() {
        return;
    }
    let entry = |s: &Sample| json!({"prompt": s.prompt, "answer": s.answer, "expected": s.expected});
    let text = json!(samples.iter().map(entry).collect::<Vec<_>>()).to_string();
    if let Err(error) = plimsoll_files::write(&folder.path().join("samples.json"), text.as_bytes()) {
        log.warning(&format!("cannot write samples.json: {error}"));
    }
}

/// Why a run ended stands at the end of its log.
fn logged(failure: Failure, log: &mut StepLog) -> Failure {
    log.record(&failure.to_string());
    failure
}

/// What was used and how fast it went, against the plan.
fn remarks(prepared: &PreparedRun, outcome: &Outcome, measured: Measured, log: &mut StepLog) {
    let data = [prepared.data.skipped(), prepared.data.waiting(outcome)];
    data.iter().flatten().for_each(|remark| log.note(remark));
    log.tables(&tables::memory(&prepared.report, measured));
    tables::overrun(&prepared.report, measured).iter().for_each(|warning| log.warning(warning));
    log.note(&tables::speed(prepared.predicted_ms(outcome), outcome.step_ms));
}

fn show(log: &mut StepLog, event: &Event) {
    match event {
        Event::MicroBatch { step, done, total } => log.micro_batch(*step, *done, *total),
        Event::Step(step) => {
            if step.step == 1 {
                let StepEvent { sequences, tokens, fill_rate, .. } = step;
                let percent = 100.0 * fill_rate;
                log.note(&format!(
                    "first update: {sequences} sequences, {tokens} tokens, {percent:.1} % of token slots filled"
                ));
            }
            log.step(&StepLine {
                step: step.step,
                loss: step.loss,
                metrics: step.metrics.clone(),
                lr: step.lr,
                grad_norm: step.grad_norm,
                tokens_per_s: step.tokens_per_s,
                step_ms: step.step_ms,
                used_bytes: if step.gpu_used_bytes > 0 { step.gpu_used_bytes } else { step.host_rss_bytes },
            });
        }
        Event::Eval { step, eval } => {
            log.eval(&EvalLine {
                step: *step,
                loss: eval.loss,
                metrics: eval.metrics.clone(),
                bleu_rows: eval.bleu_rows,
                took: seconds(eval.ms / 1e3),
            });
        }
        Event::Saved { folder, .. } => log.note(&format!("saved {}", folder.display())),
        Event::Resumed(Resumed { step, folder, changes, damaged }) => {
            damaged.iter().for_each(|checkpoint| log.warning(&checkpoint.to_string()));
            log.note(&format!("resuming after update {step} from {}", folder.display()));
            log.advance(*step as f64);
            changes.iter().for_each(|change| log.warning(&change.to_string()));
        }
        Event::Skipped { step, skip } => log.warning(&format!("step {step}: {skip}")),
        Event::Warning { warning, .. } => log.warning(&warning.to_string()),
    }
}

/// How the run went, for scripts.
fn summary(outcome: &Outcome, samples: &[Sample], measured: Measured, prepared: &PreparedRun) -> serde_json::Value {
    let report = &prepared.report;
    json!({
        "steps": outcome.steps,
        "loss_first": outcome.first_loss,
        "loss_last": outcome.last_loss,
        "eval_first": outcome.first_eval,
        "eval_last": outcome.last_eval,
        "eval": outcome.eval_metrics,
        "step_ms": outcome.step_ms,
        "tokens_per_s": outcome.tokens_per_s,
        "data_wait_share": outcome.data_wait_share,
        "fill_rate": outcome.fill_rate,
        "predicted_step_ms": prepared.predicted_ms(outcome),
        "gpu": {"planned_bytes": report.gpu.planned_bytes, "used_bytes": measured.gpu_bytes.unwrap_or(0)},
        "host": {"planned_bytes": report.host.planned_bytes, "used_bytes": measured.host_bytes.unwrap_or(0)},
        "samples_right": count_exact(samples),
        "samples": samples.len(),
        "saving": {
            "checkpoints": outcome.saving.checkpoints,
            "waited_ms": outcome.saving.waited.as_secs_f64() * 1e3,
            "wrote_ms": outcome.saving.wrote.as_secs_f64() * 1e3,
        },
        "saved": outcome.saved,
        "best": outcome.best.as_ref().map(|(best, folder)| json!({"step": best.step, best.by.name(): best.value, "folder": folder})),
    })
}

/// How the run went, for people.
fn conclude(outcome: &Outcome, samples: &[Sample], took: Duration, log: &mut StepLog) {
    if !samples.is_empty() {
        let mut table =
            Table::new(&[Column::names("held-out prompt"), Column::names("answer"), Column::names("expected")]);
        for sample in samples.iter().take(SAMPLES_SHOWN) {
            table.row([sample.prompt.clone(), sample.answer.clone(), sample.expected.clone()]);
        }
        log.data_table(table);
        let right = count_exact(samples);
        log.data(&format!("{right} of {} held-out prompts answered exactly", samples.len()));
    }
    let arrow = |from: Option<f64>, to: Option<f64>| match (from, to) {
        (Some(from), Some(to)) => format!("{from:.4} -> {to:.4}"),
        _ => "not measured".to_owned(),
    };
    log.data(&format!("training loss {}", arrow(outcome.first_loss, outcome.last_loss)));
    if outcome.last_eval.is_some() {
        log.data(&format!("evaluation loss {}", arrow(outcome.first_eval, outcome.last_eval)));
    }
    for (name, value) in outcome.eval_metrics.iter() {
        log.data(&format!("evaluation {name} {value:.4}"));
    }
    if let Some((best, folder)) = &outcome.best {
        let Best { by, value, step } = best;
        log.data(&format!("best evaluation {} {value:.4} after update {step}, in {}", by.name(), folder.display()));
    }
    log.data(&format!(
        "{} updates in {}, {:.0} tokens/s; the last weights are in {}",
        outcome.steps,
        duration(took),
        outcome.tokens_per_s,
        outcome.saved.display()
    ));
}

/// Lines of the table of answers.
const SAMPLES_SHOWN: usize = 8;
