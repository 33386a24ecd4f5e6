//! `plimsoll plan`.

use plimsoll_run::{Cause, Failure, PlannedRun, Refusal, plan};

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
    let PlannedRun { report, notes } = plan(&resolved, args.common.options(file)).inspect_err(|failure| {
        if let Cause::DoesNotFit(Some(refusal)) = &failure.cause {
            show_refusal(refusal, printer);
        }
    })?;
    notes.iter().for_each(|note| printer.remark(note));
    if printer.is_json() {
        printer.json(&report);
        return Ok(());
    }
    let mut tables = tables::plan(&report);
    tables.extend(tables::modes(&report));
    tables.push(tables::alternatives(&report.alternatives));
    printer.tables(&tables);
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
        printer.report(&[tables::alternatives(&refusal.alternatives)]);
    }
}
