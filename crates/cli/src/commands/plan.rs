//! `plimsoll plan`.

use std::time::Duration;

use plimsoll_run::{Cause, Failure, Measured, PlannedRun, Refusal, duration, plan};

use super::print_origins;
use crate::args::PlanArgs;
use crate::printer::Printer;
use crate::tables;

pub fn run(args: &PlanArgs, printer: &Printer) -> Result<(), Failure> {
    let file = args.file.as_deref();
    let resolved = args.common.resolve(file)?;
    if args.common.origins {
        print_origins(&resolved, printer);
    }
    let planned = plan(&resolved, args.common.options(file)).inspect_err(|failure| {
        if let Cause::DoesNotFit(Some(refusal)) = &failure.cause {
            show_refusal(refusal, printer);
        }
    })?;
    planned.notes.iter().for_each(|note| printer.note(note));
    let PlannedRun { report, .. } = &planned;
    if printer.is_json() {
        let mut json = serde_json::to_value(report).expect("a report is plain data");
        json["total_s"] = serde_json::json!(planned.total_s());
        printer.json(&json);
        return Ok(());
    }
    printer.data(tables::decisions(report));
    printer.data(tables::memory(report, Measured::default()));
    if report.modes.is_some() {
        printer.data(tables::modes(report));
    }
    printer.data(tables::alternatives(&report.alternatives));
    printer.data(tables::next_gib(report));
    if let (Some(seconds), Some(updates)) = (planned.total_s(), planned.updates) {
        printer.data(format!("{updates} updates take about {}", duration(Duration::from_secs_f64(seconds))));
    }
    Ok(())
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
        printer.report(tables::alternatives(&refusal.alternatives));
    }
}
