//! `plimsoll keys`: the reference of the run file.

use plimsoll_run::Failure;
use plimsoll_run::config::{reference, reference_page};

use crate::args::KeysArgs;
use crate::printer::{Column, Printer, Table};

pub fn run(args: &KeysArgs, printer: &Printer) -> Result<(), Failure> {
    if args.markdown {
        printer.script(&reference_page());
        return Ok(());
    }
    let keys = reference(args.path.as_deref())?;
    if printer.is_json() {
        printer.json(&keys);
        return Ok(());
    }
    let mut table =
        Table::new(&[Column::names("key"), Column::names("default"), Column::left("values"), Column::left("help")]);
    for key in keys {
        table.row([key.path, key.default.unwrap_or("-").to_owned(), key.values, key.help]);
    }
    printer.tables(&[table]);
    Ok(())
}
