//! `plimsoll commands`: every command with its arguments and flags, as the page docs/commands.md.

use clap::{Arg, ArgAction, Command, CommandFactory};
use plimsoll_run::Failure;

use crate::args::Cli;
use crate::printer::Printer;

pub fn run(printer: &Printer) -> Result<(), Failure> {
    printer.script(&page());
    Ok(())
}

const PAGE_HEAD: &str = "\
# Commands

`plimsoll commands` prints this page, `plimsoll help COMMAND` one command of it. Flags that set a key of the run file are
checked as that key is ([keys](keys.md)); `--set KEY=VALUE` sets any other.

| command | |
|---|---|
";

fn page() -> String {
    let mut program = Cli::command();
    program.build();
    let mut commands = Vec::new();
    collect(&program, "plimsoll", &mut commands);
    let mut page = PAGE_HEAD.to_owned();
    for (name, command) in &commands {
        page += &format!("| [`{name}`](#{}) | {} |\n", name.replace(' ', "-"), cell(&about(command)));
    }
    for (name, command) in commands {
        page += &section(&name, command);
    }
    page
}

/// The commands that can be run, in the order of the help, each under its full name.
fn collect(parent: &Command, path: &str, found: &mut Vec<(String, Command)>) {
    for command in parent.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help") {
        let name = format!("{path} {}", command.get_name());
        if command.has_subcommands() {
            collect(command, &name, found);
        } else {
            found.push((name, command.clone()));
        }
    }
}

fn section(name: &str, mut command: Command) -> String {
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let mut text = format!("\n## {name}\n\n{}.\n\n```text\n{usage}\n```\n", about(&command));
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help");
    let rows: Vec<String> = shown.map(row).collect();
    if !rows.is_empty() {
        text += &format!("\n| argument | default | help |\n|---|---|---|\n{}", rows.concat());
    }
    if let Some(example) = command.get_after_help().map(ToString::to_string) {
        text += &format!("\n```text\n{}\n```\n", example.trim_start_matches("Example: "));
    }
    text
}

fn row(arg: &Arg) -> String {
    let default: Vec<_> =
        arg.get_default_values().iter().map(|value| format!("`{}`", value.to_string_lossy())).collect();
    // Of a flag without a value, clap has `false` as its default.
    let default = if arg.get_action().takes_values() { default.join(", ") } else { String::new() };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    // A default that depends on the run stands in the help.
    let (mut help, default) = match help.strip_suffix(']').and_then(|help| help.split_once(" [default: ")) {
        Some((help, default)) => (help.to_owned(), default.to_owned()),
        None => (help, default),
    };
    let words: Vec<String> = match arg.get_action() {
        ArgAction::SetTrue => Vec::new(),
        _ => arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect(),
    };
    if !words.is_empty() {
        help += &format!(": {}", words.join(", "));
    }
    format!("| `{}` | {} | {} |\n", cell(&spelled(arg)), cell(&default), cell(&help))
}

/// As one types it: `-f, --follow`, `--gpu SIZE`, `RUN.yaml`.
fn spelled(arg: &Arg) -> String {
    let names = [arg.get_short().map(|short| format!("-{short}")), arg.get_long().map(|long| format!("--{long}"))];
    let flags: Vec<String> = names.into_iter().flatten().collect();
    let takes_value = arg.get_action().takes_values();
    let values = arg.get_value_names().filter(|_| takes_value).unwrap_or_default();
    let values: Vec<&str> = values.iter().map(|name| name.as_str()).collect();
    [flags.join(", "), values.join(" ")].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
