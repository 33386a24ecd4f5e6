//! A plan beside what the same run takes elsewhere.

use plimsoll_run::{ComparedRow, Comparison, Spread, bytes};

use crate::printer::{Column, Table};

/// One row for each way, and where its memory goes.
pub fn tables(comparison: &Comparison) -> Vec<Table> {
    vec![ways(&comparison.rows), memory(&comparison.rows)]
}

fn ways(rows: &[ComparedRow]) -> Table {
    let mut table = Table::new(&[
        Column::left(""),
        Column::left("compared"),
        Column::right("micro-batch"),
        Column::right("GPU"),
        Column::right("tokens/s"),
        Column::left(""),
    ]);
    for (index, row) in rows.iter().enumerate() {
        table.row([
            if index == 0 { ">" } else { "" }.to_owned(),
            row.name.clone(),
            format!("{} × {}", row.sequences, row.length),
            bytes(row.gpu_bytes),
            row.tokens_per_s.map_or_else(String::new, |speed| format!("{speed:.0}")),
            row.why_not.clone().unwrap_or_default(),
        ]);
    }
    table
}

/// The plan, and transformers at the same micro-batch with and without checkpointing.
fn memory(rows: &[ComparedRow]) -> Table {
    let at_own =
        |checkpointing: bool| rows.iter().skip(1).find(|row| row.name.ends_with("+ checkpointing") == checkpointing);
    let shown: Vec<&ComparedRow> = rows.first().into_iter().chain(at_own(false)).chain(at_own(true)).collect();
    let mut table = Table::new(&[
        Column::left("GPU memory at its fullest"),
        Column::right("this plan"),
        Column::right("transformers"),
        Column::right("+ checkpointing"),
    ]);
    let categories: Vec<_> = shown.iter().map(|row| row.categories.rows()).collect();
    for index in 0..categories.first().map_or(0, |rows| rows.len()) {
        if categories.iter().any(|rows| rows[index].1 > 0) {
            let cells = categories.iter().map(|rows| bytes(rows[index].1));
            table.row([categories[0][index].0.to_owned()].into_iter().chain(cells));
        }
    }
    table.row(["total".to_owned()].into_iter().chain(shown.iter().map(|row| bytes(row.gpu_bytes))));
    table
}

/// What the figures rest on, and how far they may be off.
pub fn remarks(comparison: &Comparison) -> Vec<String> {
    let Comparison { measured_on, software, runs, error, notes, .. } = comparison;
    let within = |Spread { mean, max }: Spread| format!("{:.1} % (at most {:.1} %)", 100.0 * mean, 100.0 * max);
    let mut lines = vec![format!(
        "PyTorch's figures are computed from {runs} runs that were measured on {measured_on} ({software}); each run is \
         predicted from the others within {} of GPU memory and {} of time on average",
        within(error.gpu_bytes),
        within(error.tokens_per_s)
    )];
    lines.extend(notes.iter().cloned());
    lines
}
