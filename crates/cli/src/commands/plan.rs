//! `plimsoll plan`.

use std::path::Path;

use plimsoll_observe::picture::{PlanPicture, html, png, svg};
use plimsoll_run::config::Resolved;
use plimsoll_run::{Cause, Failure, MethodTable, PlannedRun, Refusal, compare_with_pytorch, duration, methods, plan};

use super::print_origins;
use crate::args::PlanArgs;
use crate::printer::Printer;
use crate::{compared, limits, tables};

const GOALS: [&str; 2] = ["fastest", "lowest"];

pub fn run(args: &PlanArgs, printer: &Printer) -> Result<(), Failure> {
    let file = args.file.as_deref();
    let resolved = args.common.resolve(file)?;
    if args.common.origins {
        print_origins(&resolved, printer);
    }
    if args.alternatives.is_some() {
        return show_methods(&methods(&resolved, args.common.options(file))?, printer);
    }
    let planned = plan(&resolved, args.common.options(file)).inspect_err(|failure| {
        if let Cause::DoesNotFit(Some(refusal)) = &failure.cause {
            show_refusal(refusal, printer);
        }
    })?;
    planned.notes.iter().for_each(|note| printer.remark(note));
    draw_pictures(args, &planned, printer)?;
    show(args, &resolved, &planned, printer)
}

fn show(args: &PlanArgs, resolved: &Resolved, planned: &PlannedRun, printer: &Printer) -> Result<(), Failure> {
    let report = &planned.report;
    let compared = args.compare.as_ref().map(|_| compare_with_pytorch(resolved, report)).transpose()?;
    if printer.is_json() {
        let mut json = serde_json::to_value(report).expect("a report is plain data");
        json["total_s"] = serde_json::json!(planned.total_s());
        if let Some(compared) = compared {
            json["compare"] = serde_json::to_value(compared).expect("a comparison is plain data");
        }
        printer.json(&json);
        return Ok(());
    }
    if let Some(compared) = compared {
        printer.tables(&compared::tables(&compared));
        compared::remarks(&compared).into_iter().for_each(|remark| printer.data(remark));
        return Ok(());
    }
    let mut tables = tables::plan(report);
    tables.extend(tables::modes(report));
    tables.push(tables::alternatives(&report.alternatives));
    printer.tables(&tables);
    tables::rule(report).into_iter().for_each(|rule| printer.data(rule));
    printer.data(format!("\n{}", limits::sentence(report)));
    limits::hints(report, &resolved.run).into_iter().for_each(|hint| printer.advice(&hint));
    if let Some(curve) = tables::curve(report) {
        printer.data("");
        printer.tables(&[curve]);
    }
    if let (Some(seconds), Some(updates)) = (planned.total_s(), planned.updates) {
        printer.data(format!("{updates} updates take about {}", duration(plimsoll_run::seconds(seconds))));
    }
    Ok(())
}

/// The run by other methods.
fn show_methods(found: &MethodTable, printer: &Printer) -> Result<(), Failure> {
    let MethodTable { device, budgets, rows, notes, .. } = found;
    notes.iter().for_each(|note| printer.remark(note));
    let fits = rows.iter().any(|row| row.fits);
    if printer.is_json() {
        printer.json(&serde_json::json!({
            "fits": fits,
            "device": device,
            "gpu": {"budget_bytes": budgets.gpu_bytes},
            "host": {"budget_bytes": budgets.host_bytes},
            "alternatives": rows,
        }));
    } else {
        printer.tables(&[tables::methods(rows)]);
    }
    match fits {
        true => Ok(()),
        false => Err(Failure::does_not_fit(format!("no method fits the budget on {device}"))
            .hint("a shorter data.max_length or a smaller model takes less memory")),
    }
}

/// The files that `--html`, `--svg` and `--png` name.
fn draw_pictures(args: &PlanArgs, planned: &PlannedRun, printer: &Printer) -> Result<(), Failure> {
    let name = name_of(args.file.as_deref());
    let plan = PlanPicture { name: &name, report: &planned.report, picture: &planned.picture };
    if let Some(path) = &args.svg {
        draw(path, svg(&plan, printer.language()))?;
        printer.note(format!("drawn in {}", path.display()));
    }
    if let Some(path) = &args.png {
        draw(path, png(&plan))?;
        printer.note(format!("drawn in {}", path.display()));
    }
    let Some(path) = &args.html else { return Ok(()) };
    match &args.beside {
        None => draw(path, html(&[plan], printer.language()))?,
        Some(beside) => {
            let (other_name, other) = plan_beside(args, beside)?;
            let other = PlanPicture { name: &other_name, report: &other.report, picture: &other.picture };
            draw(path, html(&[plan, other], printer.language()))?;
        }
    }
    printer.note(format!("drawn in {}", path.display()));
    Ok(())
}

/// The plan of another run file, or of the same one with another goal; with the same flags otherwise.
fn plan_beside(args: &PlanArgs, beside: &Path) -> Result<(String, PlannedRun), Failure> {
    let goal = beside.to_str().filter(|goal| GOALS.contains(goal));
    let file = if goal.is_some() { args.file.as_deref() } else { Some(beside) };
    let mut common = args.common.clone();
    common.goal = goal.map(str::to_owned).or(common.goal);
    let planned = plan(&common.resolve(file)?, common.options(file))?;
    let name = name_of(file);
    Ok((goal.map_or(name.clone(), |goal| format!("{name}, {goal}")), planned))
}

fn name_of(file: Option<&Path>) -> String {
    let stem = file.and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
    stem.unwrap_or_else(|| "quickstart".to_owned())
}

/// Writes a picture, whole or not at all.
pub fn draw(path: &Path, picture: impl AsRef<[u8]>) -> Result<(), Failure> {
    let unwritten = |error| Failure::failed(format!("cannot write {}: {error}", path.display()));
    plimsoll_files::write(path, picture.as_ref()).map_err(unwritten)
}

/// What was tried, before the error says what to do.
fn show_refusal(refusal: &Refusal, printer: &Printer) {
    if printer.is_json() {
        printer.json(&serde_json::json!({
            "fits": false,
            "device": refusal.device,
            "memory": refusal.memory.to_string(),
            "budget_bytes": refusal.budget_bytes,
            "needed_bytes": refusal.needed_bytes,
            "alternatives": refusal.alternatives,
        }));
    } else if !refusal.alternatives.is_empty() {
        printer.report(&[tables::alternatives(&refusal.alternatives)]);
    }
}
