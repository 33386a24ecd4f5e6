//! `plimsoll bench`.

use std::time::Instant;

use plimsoll_plan::Report;
use plimsoll_run::config::Resolved;
use plimsoll_run::{Failure, Measured, bytes, prepare_bench, prepare_generation};
use plimsoll_train::{BenchReport, GenerationReport, Memory, OperatorTime};

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
    if let Some(new_tokens) = args.generate {
        return generate(&resolved, args, new_tokens, printer);
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
    warn_of_overrun(prepared.report(), &report.gpu, printer);
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

/// One text.
fn generate(resolved: &Resolved, args: &BenchArgs, new_tokens: usize, printer: &Printer) -> Result<(), Failure> {
    let mut prepared = prepare_generation(resolved, args.common.options(args.file.as_deref()), new_tokens)?;
    prepared.notes.iter().for_each(|note| printer.remark(note));
    let mut progress = printer.progress("tokens", new_tokens as u64);
    let mut done = 0;
    let report = prepared.run(&mut || {
        done += 1;
        progress.advance_to(done);
    })?;
    progress.finish();
    warn_of_overrun(prepared.report(), &report.gpu, printer);
    if printer.is_json() {
        printer.json(&report);
        return Ok(());
    }
    let memory = [("GPU memory", &report.gpu), ("host memory", &report.host)];
    let GenerationReport { prompt_tokens, new_tokens, tokens_per_s, first_token_ms, .. } = report;
    let mut table = compared();
    compare_times(&mut table, "token", (report.token_ms, report.predicted_token_ms));
    memory.iter().for_each(|(name, memory)| compare_memory(&mut table, name, memory));
    printer.tables(&[table]);
    printer.data(format!(
        "{tokens_per_s:.1} tokens/s over {new_tokens} tokens behind a prompt of {prompt_tokens}, the first after {first_token_ms:.0} ms"
    ));
    if args.profile {
        printer.tables(&[operators(&prepared.profile()?)]);
    }
    Ok(())
}

fn warn_of_overrun(planned: &Report, gpu: &Memory, printer: &Printer) {
    let measured = Measured { gpu_bytes: Some(gpu.used_bytes), host_bytes: None };
    tables::overrun(planned, measured).iter().for_each(|warning| printer.warning(warning));
}

/// Planned against measured.
fn comparison(report: &BenchReport) -> Table {
    let mut table = compared();
    compare_times(&mut table, "update", (report.step_ms, report.predicted_step_ms));
    compare_memory(&mut table, "GPU memory", &report.gpu);
    compare_memory(&mut table, "host memory", &report.host);
    table
}

fn compared() -> Table {
    Table::new(&[Column::left(""), Column::right("planned"), Column::right("measured"), Column::right("ratio")])
}

fn compare_times(table: &mut Table, name: &str, (measured_ms, planned_ms): (f64, f64)) {
    let ratio = format!("{:.3}", measured_ms / planned_ms);
    table.row([name.to_owned(), format!("{planned_ms:.1} ms"), format!("{measured_ms:.1} ms"), ratio]);
}

/// Nothing where there is no such memory.
fn compare_memory(table: &mut Table, name: &str, memory: &Memory) {
    let Memory { planned_bytes, used_bytes } = *memory;
    if planned_bytes > 0 {
        let ratio = format!("{:.3}", used_bytes as f64 / planned_bytes as f64);
        table.row([name.to_owned(), bytes(planned_bytes), bytes(used_bytes), ratio]);
    }
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
