//! `plimsoll train`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll_data::{Example, ExampleRef, NO_LOSS, Tokenizer};
use plimsoll_plan::Report;
use plimsoll_train::{
    DataMemory, Event, Fit, ModelOrigin, Outcome, RunFolder, Session, StepEvent, TrainError, fit, peak_resident_bytes,
    prepare,
};
use serde_json::json;

use super::print_origins;
use crate::args::TrainArgs;
use crate::config::{Init, Resolved};
use crate::dataset::{self, RunData, Surroundings};
use crate::error::Failure;
use crate::printer::{Column, EvalLine, Printer, StepLine, StepLog, Table, duration};
use crate::tables::Measured;
use crate::trouble::unprepared;
use crate::{interrupt, machine, spec, tables};

pub fn run(args: &TrainArgs, printer: &Printer) -> Result<(), Failure> {
    let began = Instant::now();
    let file = args.file.as_deref();
    let resolved = args.common.resolve(file)?;
    let out = run_folder(&resolved, file)?;
    let present = machine::present(&resolved, args.common.remeasure)?;
    let resolved = args.common.resolve_on(present.profile.backing, resolved, file)?;
    if args.common.origins {
        print_origins(&resolved, printer);
    }
    let mut spec = spec::spec(&resolved, &present.profile)?;
    check_weights(&resolved, &spec.model.origin)?;
    let room = machine::room(&resolved, &present.profile, present.card.as_ref());
    let here = Surroundings { resolved: &resolved, out: &out, host_bytes: room.budgets.host_bytes, printer };
    let data = dataset::open(&here, &spec.model)?;
    check_best(&resolved, &data)?;
    spec.model.name_end_token(data.tokenizer.eos_id());
    let (tokenizer, model) = (data.tokenizer.vocab_size(), spec.model.config.vocab_size);
    if tokenizer > model {
        return Err(TrainError::Vocabulary { tokenizer, model }.into());
    }
    let feed_bytes = |capacity| data.feed_bytes(spec.amount(), capacity);
    let memory = DataMemory { resident_bytes: data.resident_bytes(), feed_bytes: &feed_bytes };
    let mut prepared = prepare(&spec, present.backend, &present.profile, room.budgets, &memory, args.common.paranoid)
        .map_err(|error| unprepared(error, &resolved, &room))?;
    let report = prepared.chosen.report.clone();
    let total = spec::total_updates(&resolved.run, &data.train, spec.amount());
    let task = Fit {
        train: &data.train,
        eval: data.eval.as_ref(),
        shuffle: resolved.run.data.shuffle,
        amount: spec.amount(),
        rate: spec::learning_rate(&resolved.run, total),
        eval_every: resolved.run.eval.every.or(data.eval.as_ref().map(|_| total)),
        save_every: resolved.run.save.every,
        save_keep: resolved.run.save.keep as usize,
        save_best: resolved.run.save.best.is_some(),
        tokenizer_files: data.tokenizer_files.clone(),
        stop: interrupt::listen(),
    };
    let mut folder = RunFolder::create(&out, &resolved.to_yaml(), &report)?;
    let mut log = printer.steps(total, folder.open_log()?);
    present.notes.iter().chain(&room.note).for_each(|note| log.note(note));
    data.notes().iter().for_each(|note| log.note(note));
    log.example(&data.first_example()?);
    if prepared.session.has_new_head() {
        log.note("the model's files have no score head; it begins with a new one, drawn from the seed");
    }
    log.note(&tables::decisions(&report));
    log.note(&tables::memory(&report, Measured::default()));
    let outcome = fit(&mut prepared.session, &task, &mut folder, &mut |event| show(&mut log, event));
    log.finish();
    let outcome = outcome.map_err(|error| logged(error.into(), &mut log))?;
    data.met().iter().for_each(|note| log.note(note));
    data.verdict(&outcome).iter().for_each(|note| log.note(note));
    let gpu_used = prepared.session.executor().backend().used();
    let measured = Measured { host_bytes: Some(peak_resident_bytes()), gpu_bytes: gpu_used.map(|used| used.bytes) };
    log.note(&tables::memory(&report, measured));
    tables::overrun(&report, measured).iter().for_each(|warning| log.note(warning));
    log.note(&tables::speed(predicted_ms(&outcome, &report), outcome.step_ms));
    // Whoever interrupts does not want to wait for answers.
    let asked = if outcome.interrupted { None } else { resolved.run.eval.samples };
    let samples = samples(&mut prepared.session, &data, asked.unwrap_or(0) as usize)?;
    if printer.is_json() {
        printer.json(&summary(&outcome, &samples, measured, &report));
    } else {
        conclude(&outcome, &samples, began.elapsed(), &mut log);
    }
    if outcome.interrupted {
        let message = format!(
            "interrupted after update {} of {total}; the weights are saved in {}",
            outcome.steps,
            outcome.saved.display()
        );
        return Err(logged(Failure::interrupted(message), &mut log));
    }
    Ok(())
}

/// Why a run ended stands at the end of its log.
fn logged(failure: Failure, log: &mut StepLog) -> Failure {
    log.record(&failure.to_string());
    failure
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

/// The best checkpoint is told by the held-out loss.
fn check_best(resolved: &Resolved, data: &RunData) -> Result<(), Failure> {
    if resolved.run.save.best.is_none() || data.eval.is_some() {
        return Ok(());
    }
    Err(resolved
        .invalid("save.best", "`save.best` compares held-out losses, but the run has no held-out data")
        .hint("set data.eval or data.eval_split, or leave save.best out"))
}

/// `--out`, or a free name under `runs/`. A folder that already holds a run is refused before any work.
fn run_folder(resolved: &Resolved, file: Option<&Path>) -> Result<PathBuf, Failure> {
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
    let stem = file.and_then(Path::file_stem).map(|s| s.to_string_lossy().into_owned());
    let name = resolved.run.name.clone().or(stem).unwrap_or_else(|| "run".into());
    Ok(RunFolder::free_name(Path::new("runs"), &name))
}

fn show(log: &mut StepLog, event: &Event) {
    match event {
        Event::Step(step) => {
            if step.step == 1 {
                let StepEvent { sequences, tokens, fill_rate, .. } = step;
                let percent = 100.0 * fill_rate;
                log.note(&format!(
                    "first update: {sequences} sequences, {tokens} tokens, {percent:.1} % of its token slots filled"
                ));
            }
            log.step(&StepLine {
                step: step.step,
                loss: step.loss,
                pairs: step.pairs,
                lr: step.lr,
                grad_norm: step.grad_norm,
                tokens_per_s: step.tokens_per_s,
                step_ms: step.step_ms,
                used_bytes: step.host_rss_bytes,
            });
        }
        Event::Eval { step, eval } => {
            log.eval(&EvalLine {
                step: *step,
                loss: eval.loss,
                pairs: eval.pairs,
                took: Duration::from_secs_f64(eval.ms / 1e3),
            });
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
    let chosen = eval.first(count)?;
    let chosen: Vec<ExampleRef> = chosen.iter().map(Example::view).collect();
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

fn answered_exactly(samples: &[Sample]) -> usize {
    samples.iter().filter(|s| s.answer == s.expected).count()
}

/// What an update should have taken: the plan speaks of one whose sequences all have their full length.
fn predicted_ms(outcome: &Outcome, report: &Report) -> f64 {
    let planned_tokens = (report.accumulation * report.micro_batch_tokens).max(1);
    report.predicted.step_ms * outcome.computed_tokens / planned_tokens as f64
}

/// How the run went, for scripts.
fn summary(outcome: &Outcome, samples: &[Sample], measured: Measured, report: &Report) -> serde_json::Value {
    json!({
        "steps": outcome.steps,
        "loss_first": outcome.first_loss,
        "loss_last": outcome.last_loss,
        "eval_first": outcome.first_eval,
        "eval_last": outcome.last_eval,
        "eval_pairs": outcome.last_pairs,
        "step_ms": outcome.step_ms,
        "tokens_per_s": outcome.tokens_per_s,
        "data_wait_share": outcome.data_wait_share,
        "fill_rate": outcome.fill_rate,
        "predicted_step_ms": predicted_ms(outcome, report),
        "gpu": {"planned_bytes": report.gpu.planned_bytes, "used_bytes": measured.gpu_bytes.unwrap_or(0)},
        "host": {"planned_bytes": report.host.planned_bytes, "used_bytes": measured.host_bytes.unwrap_or(0)},
        "samples_right": answered_exactly(samples),
        "samples": samples.len(),
        "saved": outcome.saved,
    })
}

/// How the run went, for people.
fn conclude(outcome: &Outcome, samples: &[Sample], took: Duration, log: &mut StepLog) {
    if !samples.is_empty() {
        let mut table =
            Table::new(&[Column::left("held-out question"), Column::left("answer"), Column::left("expected")]);
        for sample in samples.iter().take(SAMPLES_SHOWN) {
            table.row([sample.question.clone(), sample.answer.clone(), sample.expected.clone()]);
        }
        log.data(&table.to_string());
        let right = answered_exactly(samples);
        log.data(&format!("{right} of {} held-out questions answered exactly", samples.len()));
    }
    let arrow = |from: Option<f64>, to: Option<f64>| match (from, to) {
        (Some(from), Some(to)) => format!("{from:.4} -> {to:.4}"),
        _ => "not measured".to_owned(),
    };
    log.data(&format!("training loss {}", arrow(outcome.first_loss, outcome.last_loss)));
    if outcome.last_eval.is_some() {
        log.data(&format!("held-out loss {}", arrow(outcome.first_eval, outcome.last_eval)));
    }
    if let Some(pairs) = outcome.last_pairs {
        let share = 100.0 * pairs.accuracy;
        log.data(&format!("held-out pairs {share:.1} % right, mean margin {:.4}", pairs.margin));
    }
    log.data(&format!(
        "{} updates in {}, {:.0} tokens/s; saved in {}",
        outcome.steps,
        duration(took),
        outcome.tokens_per_s,
        outcome.saved.display()
    ));
}

/// Lines of the table of answers.
const SAMPLES_SHOWN: usize = 8;
