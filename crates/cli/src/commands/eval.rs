//! `plimsoll eval`.

use std::path::{Path, PathBuf};

use plimsoll_run::config::{Flag, Resolved, Source, load};
use plimsoll_run::{Evaluated, Failure, evaluate, trained_folder};
use serde_json::{Value as Json, json};

use crate::args::EvalArgs;
use crate::observer::Preparing;
use crate::printer::{Column, Printer, Table};
use crate::tables;

pub fn run(args: &EvalArgs, printer: &Printer) -> Result<(), Failure> {
    let subject = Subject::find(args)?;
    let Subject { resolved, model, adapter } = &subject;
    let observer = &mut Preparing::new(printer);
    let evaluated = evaluate(resolved, model, adapter.as_deref(), args.device.paranoid, observer)?;
    evaluated.notes.iter().for_each(|note| printer.note(note));
    printer.note_tables(&tables::memory(&evaluated.report, evaluated.measured));
    if printer.is_json() {
        let Evaluated { evaluation, report, measured, .. } = &evaluated;
        let mut result = json!({
            "loss": evaluation.loss,
            "tokens": evaluation.tokens,
            "sequences": evaluation.sequences,
            "metrics": evaluation.metrics,
            "gpu": {"planned_bytes": report.gpu.planned_bytes, "used_bytes": measured.gpu_bytes.unwrap_or(0)},
            "host": {"planned_bytes": report.host.planned_bytes, "used_bytes": measured.host_bytes.unwrap_or(0)},
        });
        if let Some(rows) = evaluation.bleu_rows {
            result["bleu_rows"] = rows.into();
        }
        printer.json(&result);
    } else {
        printer.tables(&[table(&evaluated)]);
    }
    Ok(())
}

/// What is evaluated, as which run.
struct Subject {
    resolved: Resolved,
    model: String,
    adapter: Option<PathBuf>,
}

impl Subject {
    /// A run file stands for the model it begins with, a run folder for what the run has left, and anything else for a model
    /// of its own.
    fn find(args: &EvalArgs) -> Result<Self, Failure> {
        let path = Path::new(&args.model);
        let run_file =
            if path.is_file() { Some(path.to_owned()) } else { Some(path.join("run.yaml")).filter(|p| p.is_file()) };
        let mut overrides = args.device.overrides(&None);
        if let Some(data) = &args.data {
            overrides.set.push(format!("data.eval={}", Json::from(data.as_str())));
        }
        let task = args.task.clone().map(|value| Flag { name: "--task", path: "task", value });
        overrides.flags.extend(task);
        let Some(run_file) = run_file else {
            let text = format!("model: {}\n", Json::from(args.model.as_str()));
            let resolved = load(Source::Embedded { name: "eval", text: &text }, &overrides)?;
            return Ok(Self { resolved, model: args.model.clone(), adapter: args.adapter.clone() });
        };
        let resolved = load(Source::File(&run_file), &overrides)?;
        let trained = trained_folder(path);
        let model = match path.is_dir() {
            true => trained.display().to_string(),
            false => resolved.model_name().ok_or_else(|| {
                resolved
                    .invalid("model", "`model` gives only a shape, which has no weights to evaluate")
                    .hint("evaluate a run folder, or the folder of a model")
            })?,
        };
        Ok(Self { resolved, model, adapter: args.adapter.clone() })
    }
}

fn table(evaluated: &Evaluated) -> Table {
    let Evaluated { evaluation, task, model, adapter, .. } = evaluated;
    let mut table = Table::new(&[Column::left("evaluation"), Column::left("value")]);
    let mut row = |name: &str, value: String| {
        table.row([name.to_owned(), value]);
    };
    row("model", model.display().to_string());
    if let Some(adapter) = adapter {
        row("adapter", adapter.display().to_string());
    }
    row("task", (*task).to_owned());
    row("sequences", evaluation.sequences.to_string());
    row("tokens", evaluation.tokens.to_string());
    row("loss", format!("{:.6}", evaluation.loss));
    if let Some(rows) = evaluation.bleu_rows {
        row("rows with bleu", rows.to_string());
    }
    for (name, value) in evaluation.metrics.iter() {
        row(name, format!("{value:.6}"));
    }
    table
}
