//! `plimsoll`: trains language models inside a memory budget.

mod args;
mod beside;
mod commands;
mod compared;
mod curves;
mod interrupt;
mod language;
mod launcher;
mod limits;
mod observer;
mod printer;
mod tables;

use std::process::ExitCode;

use args::Command;
use plimsoll_run::{Code, Failure};
use plimsoll_speech::Language;
use printer::Printer;

fn main() -> ExitCode {
    let chosen = language::chosen();
    let language = chosen.as_ref().copied().unwrap_or_default();
    printer::install_panic_hook(language);
    // The hook has already reported what went wrong.
    std::panic::catch_unwind(|| run(chosen, language)).unwrap_or(ExitCode::from(Code::Failed as u8))
}

fn run(chosen: Result<Language, Failure>, language: Language) -> ExitCode {
    let cli = match language::parse(language) {
        Ok(cli) => cli,
        Err(error) => {
            let printer = Printer::new(false, false, language);
            printer.usage(&error);
            let code = if error.use_stderr() { ExitCode::from(Code::Usage as u8) } else { ExitCode::SUCCESS };
            return ended(Printer::finish(), &printer, code);
        }
    };
    let output = cli.command.output();
    let printer = Printer::new(output.quiet, output.json, language);
    if let Err(failure) = chosen {
        return ended(Err(failure), &printer, ExitCode::SUCCESS);
    }
    ended(dispatch(&cli.command, &printer).and_then(|()| Printer::finish()), &printer, ExitCode::SUCCESS)
}

/// Says why a command failed; `code` is for one that did not.
fn ended(outcome: Result<(), Failure>, printer: &Printer, code: ExitCode) -> ExitCode {
    match outcome {
        Ok(()) => code,
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
        Command::Export(args) => commands::export::run(args, printer),
        Command::Stop(args) => commands::stop::run(args, printer),
        Command::Status(args) => commands::status::run(args, printer),
        Command::Doctor(args) => commands::doctor::run(args, printer),
        Command::Logs(args) => commands::runs::logs(args, printer),
        Command::Dashboard(args) => commands::runs::dashboard(args, printer),
        Command::Watch(args) => commands::runs::watch(args, printer),
        Command::Merge(args) => commands::merge::run(args, printer),
        Command::Keys(args) => commands::keys::run(args, printer),
        Command::Completions(args) => commands::completions::run(args, printer),
        Command::Commands => commands::reference::run(printer),
        Command::Init(args) => commands::init::run(args, printer),
        Command::Tokenizer(command) => commands::tokenizer::run(command, printer),
    }
}
