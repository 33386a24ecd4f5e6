//! `plimsoll`: trains language models inside a memory budget.

mod args;
mod commands;
mod interrupt;
mod observer;
mod printer;
mod tables;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use plimsoll_run::{Code, Failure};
use printer::Printer;

fn main() -> ExitCode {
    printer::install_panic_hook();
    // The hook has already reported what went wrong.
    std::panic::catch_unwind(run).unwrap_or(ExitCode::from(Code::Failed as u8))
}

fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            Printer::new(false, false).usage(&error);
            let code = if error.use_stderr() { Code::Usage as u8 } else { 0 };
            return ExitCode::from(code);
        }
    };
    let output = cli.command.output();
    let printer = Printer::new(output.quiet, output.json);
    match dispatch(&cli.command, &printer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            printer.failure(&failure);
            ExitCode::from(failure.code() as u8)
        }
    }
}

fn dispatch(command: &Command, printer: &Printer) -> Result<(), Failure> {
    match command {
        Command::Train(args) => commands::train::run(args, printer),
        Command::Plan(args) => commands::plan::run(args, printer),
        Command::Bench(args) => commands::bench::run(args, printer),
        Command::Generate(args) => commands::generate::run(args, printer),
        Command::Eval(args) => commands::eval::run(args, printer),
        Command::Stop(args) => commands::stop::run(args, printer),
        Command::Status(args) => commands::status::run(args, printer),
        Command::Keys(args) => commands::keys::run(args, printer),
        Command::Init(args) => commands::init::run(args, printer),
        Command::Tokenizer(command) => commands::tokenizer::run(command, printer),
    }
}
