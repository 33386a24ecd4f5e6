//! `plimsoll completions`: what a shell needs to complete commands and flags.

use clap::CommandFactory;
use plimsoll_run::Failure;

use crate::args::{Cli, CompletionsArgs};
use crate::printer::Printer;

pub fn run(args: &CompletionsArgs, printer: &Printer) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "plimsoll", &mut script);
    printer.script(&String::from_utf8_lossy(&script));
    Ok(())
}
