//! `plimsoll merge`: an adapter folded into its base model.

use plimsoll_run::config::Budget;
use plimsoll_run::{Failure, Merged, bytes, merge};
use serde_json::json;

use crate::args::MergeArgs;
use crate::printer::{Column, Printer, Table};

pub fn run(args: &MergeArgs, printer: &Printer) -> Result<(), Failure> {
    let shard = args.shard.as_deref().map(size).transpose()?;
    let mut progress = None;
    let mut tick = |done: u64, total: u64| {
        progress.get_or_insert_with(|| printer.progress("merging", total)).advance_to(done);
    };
    let merged = merge(&args.adapter, args.base.as_deref(), &args.out, shard, &mut tick)?;
    if let Some(mut progress) = progress {
        progress.finish();
    }
    report(&merged, args, printer);
    Ok(())
}

fn size(text: &str) -> Result<u64, Failure> {
    match Budget::parse(text) {
        Ok(Budget::Bytes(bytes)) => Ok(bytes),
        _ => Err(Failure::usage(format!("--shard must be a size, not `{text}`")).hint("for example `5GB` or `2GiB`")),
    }
}

fn report(merged: &Merged, args: &MergeArgs, printer: &Printer) {
    let Merged { base, plan, base_error, planned_bytes, measured_bytes } = merged;
    if printer.is_json() {
        printer.json(&json!({
            "out": args.out,
            "base": base,
            "folded": plan.folded,
            "replaced": plan.replaced,
            "tensors": plan.tensors,
            "files": plan.shards,
            "bytes": plan.output_bytes,
            "base_error": base_error.map(|error| json!({"format": error.format.name(), "relative_rms": error.relative_rms})),
            "host": {"planned_bytes": planned_bytes, "used_bytes": measured_bytes},
        }));
        return;
    }
    let mut table = Table::new(&[Column::left("merge"), Column::left("value")]);
    let mut row = |name: &str, value: String| {
        table.row([name.to_owned(), value]);
    };
    row("base model", base.clone());
    row("folded", format!("{} of {} tensors", plan.folded, plan.tensors));
    if plan.replaced > 0 {
        row("taken whole", plan.replaced.to_string());
    }
    if let Some(error) = base_error {
        let (format, percent) = (error.format.name(), 100.0 * error.relative_rms);
        row("base error", format!("{percent:.2} % (root mean square): the adapter was trained beside {format}"));
    }
    row("written", format!("{} in {}", bytes(plan.output_bytes), args.out.display()));
    row("host memory", format!("{} planned, {} measured peak", bytes(*planned_bytes), bytes(*measured_bytes)));
    printer.tables(&[table]);
}
