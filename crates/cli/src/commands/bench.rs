//! `plimsoll bench`.

use std::time::Instant;

use plimsoll_run::{Failure, Measured, bytes, prepare_bench};
use plimsoll_train::{BenchReport, OperatorTime};

use super::print_origins;
use crate::args::BenchArgs;
use crate::printer::{Column, Printer, Table};
use crate::tables;

/// Timed updates when none are asked for.
const STEPS: u64 = 8;

pub fn run(args: &BenchArgs, printer: &Printer) -> Result<(), Failure> {
    let began = Instant::now();
    let file = args.file.as_deref();
    let resolved = args.common.resolve(file)?;
    if args.common.origins {
        print_origins(&resolved, printer);
    }
    let mut prepared = prepare_bench(&resolved, args.common.options(file))?;
    prepared.notes.iter().for_each(|note| printer.remark(note));
    if !printer.is_json() {
        printer.report(&tables::plan(prepared.report()));
    }
    let steps = args.common.steps.unwrap_or(STEPS);
    let mut progress = printer.progress("updates", steps);
    let report = prepared.run(steps, began, &mut |done, total| {
        progress.advance_to((done + steps).saturating_sub(total));
    })?;
    progress.finish();
    let measured = Measured { gpu_bytes: Some(report.gpu.used_bytes), host_bytes: None };
    tables::overrun(prepared.report(), measured).iter().for_each(|warning| printer.warning(warning));
    if printer.is_json() {
        printer.json(&report);
        return Ok(());
    }
    printer.tables(&[comparison(&report)]);
    printer.data(format!(
        "{:.0} tokens/s, loss {:.4} -> {:.4}, first update after {:.2} s",
        report.tokens_per_s, report.loss_first, report.loss_last, report.first_step_s
    ));
    if args.profile {
        printer.tables(&[operators(&prepared.profile()?)]);
    }
    Ok(())
}

/// Planned against measured.
fn comparison(report: &BenchReport) -> Table {
    let mut table =
        Table::new(&[Column::left(""), Column::right("planned"), Column::right("measured"), Column::right("ratio")]);
    let ratio = |measured: f64, planned: f64| format!("{:.3}", measured / planned);
    table.row([
        "update".to_owned(),
        format!("{:.1} ms", report.predicted_step_ms),
        format!("{:.1} ms", report.step_ms),
        ratio(report.step_ms, report.predicted_step_ms),
    ]);
    if report.gpu.planned_bytes > 0 {
        table.row([
            "GPU memory".to_owned(),
            bytes(report.gpu.planned_bytes),
            bytes(report.gpu.used_bytes),
            ratio(report.gpu.used_bytes as f64, report.gpu.planned_bytes as f64),
        ]);
    }
    table.row([
        "host memory".to_owned(),
        bytes(report.host.planned_bytes),
        bytes(report.host.used_bytes),
        ratio(report.host.used_bytes as f64, report.host.planned_bytes as f64),
    ]);
    table
}

/// Where the time goes, most first; rates are those of a full micro-batch.
fn operators(times: &[OperatorTime]) -> Table {
    let total: f64 = times.iter().map(|t| t.ms).sum();
    let mut table = Table::new(&[
        Column::left("operator"),
        Column::right("calls"),
        Column::right("ms"),
        Column::right("share"),
        Column::right("predicted ms"),
        Column::right("TFLOP/s"),
        Column::right("GB/s"),
    ]);
    for time in times {
        table.row([
            time.operator.to_owned(),
            time.count.to_string(),
            format!("{:.3}", time.ms),
            format!("{:.1} %", 100.0 * time.ms / total),
            format!("{:.3}", time.predicted_ms),
            format!("{:.3}", time.flops / time.ms / 1e9),
            format!("{:.0}", time.bytes / time.ms / 1e6),
        ]);
    }
    table
}
