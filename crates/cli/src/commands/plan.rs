//! `plimsoll plan`.

use plimsoll_plan::{Fixed, PlanError};
use plimsoll_train::{TrainError, plan_only};

use super::print_origins;
use crate::args::PlanArgs;
use crate::error::Failure;
use crate::machine::Planned;
use crate::printer::Printer;
use crate::tables::Measured;
use crate::trouble::unprepared;
use crate::{machine, spec, tables};

pub fn run(args: &PlanArgs, printer: &Printer) -> Result<(), Failure> {
    let file = args.file.as_deref();
    let resolved = args.common.resolve(file)?;
    let Planned { profile: device, notes, card } = machine::planned(&resolved, args.common.remeasure)?;
    let resolved = args.common.resolve_on(device.backing, resolved, file)?;
    if args.common.origins {
        print_origins(&resolved, printer);
    }
    let spec = spec::spec(&resolved, &device)?;
    let room = machine::room(&resolved, &device, card.as_ref());
    let fixed = Fixed {
        gpu_context_bytes: device.context_bytes,
        host_process_bytes: device.host_process_bytes,
        host_data_bytes: 0,
    };
    match plan_only(&spec, &device, room.budgets, fixed) {
        Ok((chosen, _)) => {
            let report = &chosen.report;
            notes.iter().chain(&room.note).for_each(|note| printer.note(note));
            if printer.is_json() {
                printer.json(report);
            } else {
                printer.data(tables::decisions(report));
                printer.data(tables::memory(report, Measured::default()));
                if report.modes.is_some() {
                    printer.data(tables::modes(report));
                }
                printer.data(tables::alternatives(&report.alternatives));
            }
            Ok(())
        }
        Err(error) => {
            if let TrainError::Plan(refusal) = &error {
                show_refusal(refusal, &device.name, printer);
            }
            Err(unprepared(error, &resolved, &room))
        }
    }
}

/// What was tried, before the error says what to do.
fn show_refusal(refusal: &PlanError, device: &str, printer: &Printer) {
    let PlanError::DoesNotFit { memory, budget_bytes, needed_bytes, alternatives, .. } = refusal else { return };
    if printer.is_json() {
        printer.json(&serde_json::json!({
            "fits": false,
            "device": device,
            "memory": memory,
            "budget_bytes": budget_bytes,
            "needed_bytes": needed_bytes,
            "alternatives": alternatives,
        }));
    } else if !alternatives.is_empty() {
        printer.report(tables::alternatives(alternatives));
    }
}
