//! The tables of a plan: where every byte goes, and what else could be done.

use plimsoll_plan::{Alternative, Report, SAME_SPEED, SaveMode};
use plimsoll_run::{Measured, bytes};

use crate::printer::{Column, Table};

/// Where the planned memory goes, with what was measured if the run is over.
pub fn memory(report: &Report, measured: Measured) -> Vec<Table> {
    let Report { gpu, host, .. } = report;
    let (on_gpu, on_host) = (gpu.categories.rows(), host.categories.rows());
    let of_gpu = || one_memory("GPU memory", &on_gpu, gpu.planned_bytes, gpu.budget_bytes, measured.gpu_bytes);
    let gpu = (gpu.planned_bytes > 0).then(of_gpu);
    let host = one_memory("host memory", &on_host, host.planned_bytes, host.budget_bytes, measured.host_bytes);
    gpu.into_iter().chain([host]).collect()
}

/// What was decided, and where the memory goes.
pub fn plan(report: &Report) -> Vec<Table> {
    [decisions(report)].into_iter().chain(memory(report, Measured::default())).collect()
}

/// A warning where more GPU memory was used than planned.
pub fn overrun(report: &Report, measured: Measured) -> Option<String> {
    let (used, planned) = (measured.gpu_bytes?, report.gpu.planned_bytes);
    let over = used.checked_sub(planned).filter(|over| *over > 0 && planned > 0)?;
    Some(format!("{} of GPU memory used, {} more than planned", bytes(used), bytes(over)))
}

/// The predicted and the measured time of an update.
pub fn speed(predicted_ms: f64, measured_ms: f64) -> String {
    let ratio = measured_ms / predicted_ms.max(1e-9);
    format!("update: predicted {predicted_ms:.1} ms, measured {measured_ms:.1} ms (median), ratio {ratio:.3}")
}

/// What the same plan takes in either mode; nothing where there is no GPU.
pub fn modes(report: &Report) -> Option<Table> {
    let modes = report.modes?;
    let mut table = Table::new(&[Column::left("mode"), Column::right("GPU memory"), Column::left("")]);
    table.row([
        "compiled".to_owned(),
        bytes(modes.compiled_bytes),
        "schedules are recorded once and replayed".to_owned(),
    ]);
    table.row(["eager".to_owned(), bytes(modes.eager_bytes), "operator by operator, nothing is recorded".to_owned()]);
    Some(table)
}

fn one_memory(
    name: &'static str,
    rows: &[(&'static str, u64)],
    planned: u64,
    budget: u64,
    measured: Option<u64>,
) -> Table {
    let mut table = Table::new(&[Column::left(name), Column::right("planned"), Column::right("share")]);
    for (category, size) in rows.iter().filter(|(_, size)| *size > 0) {
        table.row([(*category).to_owned(), bytes(*size), share(*size, planned)]);
    }
    table.row(["total".to_owned(), bytes(planned), format!("{} of budget", share(planned, budget))]);
    table.row(["budget".to_owned(), bytes(budget), String::new()]);
    if let Some(measured) = measured {
        table.row(["measured peak".to_owned(), bytes(measured), format!("{} of plan", share(measured, planned))]);
    }
    table
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// The decisions of a plan.
fn decisions(report: &Report) -> Table {
    let mut recompute: Vec<String> = report.recompute.iter().map(|(class, k)| format!("{class} ×{k}")).collect();
    if recompute.is_empty() {
        recompute.push("none".into());
    }
    let layout = &report.layout;
    let over = 100.0 * (layout.arena_bytes as f64 / layout.lower_bound_bytes.max(1) as f64 - 1.0);
    let batch = &report.effective_batch;
    let update = match batch.in_tokens {
        true => format!("at most {} tokens, {} sequences or more", batch.tokens_max, batch.sequences),
        false => format!("{} sequences", batch.sequences),
    };
    let mut table = Table::new(&[Column::left("decision"), Column::left("value")]);
    let rows = [
        ("device", report.device.clone()),
        ("update", update),
        ("micro-batch", format!("{} tokens, {} per update", report.micro_batch_tokens, report.accumulation)),
        ("recompute", recompute.join(", ")),
        ("loss chunks", report.loss_chunks.to_string()),
        (
            "checkpoints",
            match report.save {
                SaveMode::Between => "written between updates".to_owned(),
                SaveMode::Beside => "written beside training, from a snapshot".to_owned(),
            },
        ),
        ("layout", format!("{over:.2} % above the lower bound")),
        (
            "predicted",
            format!(
                "{:.0} ms per update, {:.0} tokens/s, bound by {}",
                report.predicted.step_ms, report.predicted.tokens_per_s, report.predicted.bound_by
            ),
        ),
    ];
    for (name, value) in rows {
        table.row([name.to_owned(), value]);
    }
    if report.mlp_chunks > 1 {
        table.row(["MLP chunks".to_owned(), report.mlp_chunks.to_string()]);
    }
    if !report.keep.is_empty() {
        let keep: Vec<String> = report.keep.iter().map(|(class, k)| format!("{class} ×{k}")).collect();
        table.row(["kept in fp8".to_owned(), keep.join(", ")]);
    }
    if report.update_in_backward {
        table.row(["optimizer".to_owned(), "in the backward pass".to_owned()]);
    }
    table
}

/// How the plan was chosen among its alternatives; nothing where none of them is it.
pub fn rule(report: &Report) -> Option<String> {
    let (chosen, percent) = (report.alternatives.iter().any(|a| a.chosen), SAME_SPEED * 100.0);
    chosen.then(|| format!(">  taken: the smallest plan within {percent} % of the fastest that fits"))
}

/// What more memory would buy; nothing where it would not make the plan faster.
pub fn curve(report: &Report) -> Option<Table> {
    let on_gpu = report.gpu.planned_bytes > 0;
    let (budget, more) = if on_gpu {
        (report.gpu.budget_bytes, "more GPU memory")
    } else {
        (report.host.budget_bytes, "more host memory")
    };
    let now = report.predicted.tokens_per_s;
    let mut table =
        Table::new(&[Column::left(more), Column::right("budget"), Column::right("tokens/s"), Column::left("")]);
    for at in &report.next_gib {
        let larger = if on_gpu { at.gpu_bytes } else { at.host_bytes };
        table.row([
            format!("+{} GiB", larger.saturating_sub(budget) >> 30),
            bytes(larger),
            format!("{:.0}", at.tokens_per_s),
            format!("{:.2} × faster", at.tokens_per_s / now),
        ]);
    }
    (!report.next_gib.is_empty()).then_some(table)
}

/// From fastest to smallest.
pub fn alternatives(alternatives: &[Alternative]) -> Table {
    let on_gpu = alternatives.iter().any(|a| a.gpu_bytes > 0);
    let mut table = Table::new(&[
        Column::left(""),
        Column::left("plan"),
        Column::right("micro-batch"),
        Column::right(if on_gpu { "GPU" } else { "host" }),
        Column::right("tokens/s"),
        Column::left(""),
    ]);
    for a in alternatives {
        table.row([
            if a.chosen { ">" } else { "" }.to_owned(),
            a.name.clone(),
            a.micro_batch_tokens.to_string(),
            bytes(if on_gpu { a.gpu_bytes } else { a.host_bytes }),
            format!("{:.0}", a.tokens_per_s),
            a.why_not.clone().unwrap_or_default(),
        ]);
    }
    table
}

/// Methods from the fastest that fits to the one that lacks most.
pub fn methods(rows: &[Alternative]) -> Table {
    let on_gpu = rows.iter().any(|row| row.gpu_bytes > 0);
    let mut columns =
        vec![Column::left(""), Column::left("method"), Column::right("micro-batch"), Column::right("host")];
    if on_gpu {
        columns.insert(3, Column::right("GPU"));
    }
    columns.extend([Column::right("tokens/s"), Column::left("")]);
    let mut table = Table::new(&columns);
    for row in rows {
        let mut cells = vec![
            if row.chosen { ">" } else { "" }.to_owned(),
            row.name.clone(),
            row.micro_batch_tokens.to_string(),
            bytes(row.host_bytes),
            format!("{:.0}", row.tokens_per_s),
            row.why_not.clone().unwrap_or_default(),
        ];
        if on_gpu {
            cells.insert(3, bytes(row.gpu_bytes));
        }
        table.row(cells);
    }
    table
}
