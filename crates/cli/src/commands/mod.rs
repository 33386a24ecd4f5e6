//! One file per command.

pub mod bench;
pub mod completions;
pub mod doctor;
pub mod eval;
pub mod export;
pub mod generate;
pub mod init;
pub mod keys;
pub mod merge;
pub mod plan;
pub mod reference;
pub mod runs;
pub mod status;
pub mod stop;
pub mod tokenizer;
pub mod train;

use plimsoll_run::config::Resolved;

use crate::printer::{Column, Printer, Table};

/// `--origins`: where each value comes from. It is no result of the command, so it goes to stderr.
fn print_origins(resolved: &Resolved, printer: &Printer) {
    let mut table = Table::new(&[Column::names("key"), Column::names("value"), Column::left("origin")]);
    for row in resolved.origins() {
        table.row([row.path, row.value, row.origin.to_string()]);
    }
    printer.report(&[table]);
}
