//! `plimsoll completions`: what a shell needs to complete commands and flags.

use clap::{Command, CommandFactory};
use plimsoll_run::Failure;
use plimsoll_speech::Language;

use crate::args::{Cli, CompletionsArgs};
use crate::printer::Printer;

pub fn run(args: &CompletionsArgs, printer: &Printer) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut said(Cli::command(), printer.language()), "plimsoll", &mut script);
    printer.script(&String::from_utf8_lossy(&script));
    Ok(())
}

/// The command with its help in a language, for shells that show it.
fn said(command: Command, language: Language) -> Command {
    let text = |help: &clap::builder::StyledStr| language.say(&help.to_string()).into_owned();
    let about = command.get_about().map(text).unwrap_or_default();
    let command = command.mut_args(|arg| {
        let help = arg.get_help().map(text).unwrap_or_default();
        arg.help(help)
    });
    command.about(about).mut_subcommands(|below| said(below, language))
}
