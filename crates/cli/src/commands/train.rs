//! `plimsoll train`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_data::{ExampleRef, NO_LOSS, Tokenizer};
use plimsoll_train::{
    Event, Fit, ModelOrigin, Outcome, RunFolder, Session, TrainError, fit, peak_resident_bytes, prepare,
};
use serde_json::json;

use super::print_origins;
use crate::args::TrainArgs;
use crate::config::{Init, Resolved};
use crate::dataset::{self, RunData};
use crate::error::Failure;
use crate::printer::{Column, EvalLine, Printer, StepLine, StepLog, Table, duration};
use crate::{interrupt, machine, spec, tables};

pub fn run(args: &TrainArgs, printer: &Printer) -> Result<(), Failure> {
    let began = Instant::now();
    let resolved = args.common.resolve(args.file.as_deref())?;
    if args.common.origins {
        print_origins(&resolved, printer);
    }
    let present = machine::present(&resolved)?;
    let mut spec = spec::spec(&resolved, &present.profile)?;
    check_weights(&resolved, &spec.model.origin)?;
    let data = dataset::open(&resolved, &spec.model)?;
    spec.model.name_end_token(data.tokenizer.eos_id());
    let (tokenizer, model) = (data.tokenizer.vocab_size(), spec.model.config.vocab_size);
    if tokenizer > model {
        return Err(TrainError::Vocabulary { tokenizer, model }.into());
    }
    let out = run_folder(&resolved, args.file.as_deref())?;
    let budgets = machine::budgets(&resolved, &present.profile);
    let mut prepared =
        prepare(&spec, present.backend, &present.profile, budgets, data.resident_bytes(), args.common.paranoid)?;
    let report = prepared.chosen.report.clone();
    printer.note(tables::decisions(&report));
    printer.note(tables::memory(&report, None));

    let total = spec::total_updates(&resolved.run, data.train.len(), spec.sequences);
    let task = Fit {
        train: &data.train,
        eval: data.eval.as_ref(),
        shuffle: resolved.run.data.shuffle,
        sequences: spec.sequences,
        rate: spec::learning_rate(&resolved.run, total),
        eval_every: resolved.run.eval.every.or(data.eval.as_ref().map(|_| total)),
        save_every: resolved.run.save.every,
        save_keep: resolved.run.save.keep as usize,
        tokenizer_files: data.tokenizer_files.clone(),
        stop: interrupt::listen(),
    };
    let mut folder = RunFolder::create(&out, &resolved.to_yaml(), &report)?;
    let mut log = printer.steps(total);
    let outcome = fit(&mut prepared.session, &task, &mut folder, &mut |event| show(&mut log, event));
    log.finish();
    let outcome = outcome?;
    let measured = peak_resident_bytes();
    printer.note(tables::memory(&report, Some(measured)));
    let samples = samples(&mut prepared.session, &data, resolved.run.eval.samples.unwrap_or(0) as usize)?;
    conclude(&outcome, &samples, measured, report.host.planned_bytes, began.elapsed(), printer);
    if outcome.interrupted {
        return Err(Failure::interrupted(format!(
            "interrupted after update {} of {total}; the weights are saved in {}",
            outcome.steps,
            outcome.saved.display()
        )));
    }
    Ok(())
}

/// A preset is a shape without weights; training it from random ones must be asked for.
fn check_weights(resolved: &Resolved, origin: &ModelOrigin) -> Result<(), Failure> {
    match origin {
        ModelOrigin::Preset(name) if resolved.run.init != Init::Random => Err(resolved
            .invalid("model", format!("the preset `{name}` has a shape but no weights"))
            .hint("give the folder of a downloaded model, or train from random weights with init: random")),
        _ => Ok(()),
    }
}

/// `--out`, or a free name under `runs/`. A folder that already holds a run is refused before any work.
fn run_folder(resolved: &Resolved, file: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(out) = &resolved.run.out {
        if out.join("metrics.jsonl").exists() {
            return Err(resolved
                .invalid("out", format!("{} already holds a run", out.display()))
                .hint("choose another folder with --out"));
        }
        return Ok(out.clone());
    }
    let stem = file.and_then(Path::file_stem).map(|s| s.to_string_lossy().into_owned());
    let name = resolved.run.name.clone().or(stem).unwrap_or_else(|| "run".into());
    Ok(RunFolder::free_name(Path::new("runs"), &name))
}

fn show(log: &mut StepLog, event: &Event) {
    match event {
        Event::Step(step) => log.step(&StepLine {
            step: step.step,
            loss: step.loss,
            lr: step.lr,
            grad_norm: step.grad_norm,
            tokens_per_s: step.tokens_per_s,
            step_ms: step.step_ms,
            used_bytes: step.host_rss_bytes,
        }),
        Event::Eval { step, eval } => {
            log.eval(&EvalLine { step: *step, loss: eval.loss, took: Duration::from_secs_f64(eval.ms / 1e3) });
        }
        Event::Saved { folder, .. } => log.note(&format!("saved {}", folder.display())),
    }
}

/// A held-out question, what the model says, and what was expected.
struct Sample {
    question: String,
    answer: String,
    expected: String,
}

/// Tokens the model may take for one answer.
const ANSWER_TOKENS_MAX: usize = 64;

fn samples(session: &mut Session, data: &RunData, count: usize) -> Result<Vec<Sample>, Failure> {
    let Some(eval) = &data.eval else { return Ok(Vec::new()) };
    let chosen: Vec<ExampleRef> = (0..eval.len().min(count)).map(|i| eval.get(i)).collect();
    let prompts: Vec<Vec<u32>> = chosen.iter().map(|e| prompt(e)).collect();
    // An answer ends where the examples' answers end.
    let stop = chosen.first().and_then(|e| expected(e).last().copied());
    let answers = session.sample(&prompts, stop, ANSWER_TOKENS_MAX)?;
    let text = |tokenizer: &Tokenizer, ids: &[u32]| tokenizer.decode(ids, true).map(|t| t.trim().to_owned());
    let mut samples = Vec::new();
    for ((example, prompt), answer) in chosen.iter().zip(&prompts).zip(&answers) {
        samples.push(Sample {
            question: text(&data.tokenizer, prompt)?,
            answer: text(&data.tokenizer, answer)?,
            expected: text(&data.tokenizer, &expected(example))?,
        });
    }
    Ok(samples)
}

/// Everything up to the first token that bears loss.
fn prompt(example: &ExampleRef) -> Vec<u32> {
    let first = example.targets.iter().position(|&t| t != NO_LOSS).unwrap_or(example.len().saturating_sub(1));
    example.tokens[..=first].to_vec()
}

fn expected(example: &ExampleRef) -> Vec<u32> {
    example.targets.iter().filter(|&&t| t != NO_LOSS).map(|&t| t.cast_unsigned()).collect()
}

fn conclude(outcome: &Outcome, samples: &[Sample], measured: u64, planned: u64, took: Duration, printer: &Printer) {
    let right = samples.iter().filter(|s| s.answer == s.expected).count();
    if printer.is_json() {
        printer.json(&json!({
            "steps": outcome.steps,
            "loss_first": outcome.first_loss,
            "loss_last": outcome.last_loss,
            "eval_first": outcome.first_eval,
            "eval_last": outcome.last_eval,
            "step_ms": outcome.step_ms,
            "tokens_per_s": outcome.tokens_per_s,
            "host": {"planned_bytes": planned, "used_bytes": measured},
            "samples_right": right,
            "samples": samples.len(),
            "saved": outcome.saved,
        }));
        return;
    }
    if !samples.is_empty() {
        let mut table =
            Table::new(&[Column::left("held-out question"), Column::left("answer"), Column::left("expected")]);
        for sample in samples.iter().take(SAMPLES_SHOWN) {
            table.row([sample.question.clone(), sample.answer.clone(), sample.expected.clone()]);
        }
        printer.data(table);
        printer.data(format!("{right} of {} held-out questions answered exactly", samples.len()));
    }
    let arrow = |from: Option<f64>, to: Option<f64>| match (from, to) {
        (Some(from), Some(to)) => format!("{from:.4} -> {to:.4}"),
        _ => "not measured".to_owned(),
    };
    printer.data(format!("training loss {}", arrow(outcome.first_loss, outcome.last_loss)));
    if outcome.last_eval.is_some() {
        printer.data(format!("held-out loss {}", arrow(outcome.first_eval, outcome.last_eval)));
    }
    printer.data(format!(
        "{} updates in {}, {:.0} tokens/s; saved in {}",
        outcome.steps,
        duration(took),
        outcome.tokens_per_s,
        outcome.saved.display()
    ));
}

/// Lines of the table of answers.
const SAMPLES_SHOWN: usize = 8;
