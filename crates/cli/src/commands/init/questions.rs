//! The questions of `plimsoll init`, each asked again until its answer can be used.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_run::config::Budget;
use plimsoll_run::{Failure, Inspected, RUNS, bytes, inspect, preset_names};
use plimsoll_train::{Model, ModelOrigin, TASKS, cached_models};

use super::choosing::choose;
use super::draft::Draft;
use super::{described, take};
use crate::args::Preset;
use crate::launcher::found;
use crate::printer::{Column, Printer, Table};

/// Of a kind, so many are offered by number.
const OFFERED_MAX: usize = 9;
/// Tokens of a sequence, where the model has room for more.
const MAX_LENGTH: u64 = 1024;
/// Tasks that compare two sequences of a row.
const PAIRED: [&str; 3] = ["reward", "dpo", "orpo"];

/// Asks for everything, has a plan chosen, and returns what is to be written.
pub fn answered(printer: &Printer) -> Result<Draft, Failure> {
    let mut draft = Draft::of(Preset::Balanced);
    let near = found(&[PathBuf::from(".")], Path::new(RUNS));
    let model = ask_model(&mut draft, &near, printer)?;
    let found = ask_data(&mut draft, &model, &near.data, printer)?;
    ask_task(&mut draft, &readable(&found, &model), printer)?;
    show_memory(&near, printer);
    let on_gpu = !near.gpus.is_empty() || std::env::var_os("PLIMSOLL_DEVICE").is_some_and(|device| device != "cpu");
    (draft.gpu, draft.host) = ("auto".to_owned(), "auto".to_owned());
    loop {
        ask_size(&mut draft, &model, printer)?;
        if on_gpu {
            draft.gpu = asked(printer, "GPU memory budget", &draft.gpu, budget)?;
        }
        draft.host = asked(printer, "host memory budget", &draft.host, budget)?;
        match choose(&draft, printer) {
            Ok(chosen) => return Ok(chosen),
            Err(failure) if matches!(failure.cause, plimsoll_run::Cause::DoesNotFit(_)) => printer.failure(&failure),
            Err(failure) => return Err(failure),
        }
    }
}

/// Asks until `check` takes the answer; nothing typed is the answer between brackets.
pub fn asked<T>(
    printer: &Printer,
    question: &str,
    default: &str,
    mut check: impl FnMut(&str) -> Result<T, Failure>,
) -> Result<T, Failure> {
    loop {
        let marks = if default.is_empty() { ": ".to_owned() } else { format!(" [{default}]: ") };
        let typed = printer.answer(question, &marks)?;
        match check(if typed.is_empty() { default } else { &typed }) {
            Ok(value) => return Ok(value),
            Err(failure) => printer.failure(&failure),
        }
    }
}

/// What an answer means where things are offered by number: the thing of that number, or what was typed.
pub fn picked<'a>(answer: &'a str, offered: &'a [String], what: &str) -> Result<&'a str, Failure> {
    match answer.parse::<usize>() {
        Ok(number) => offered.get(number.wrapping_sub(1)).map(String::as_str).ok_or_else(|| {
            Failure::usage(format!("there is no {what} {number}")).hint(match offered.len() {
                0 => format!("type the {what}'s name"),
                count => format!("choose 1 to {count}, or type its name"),
            })
        }),
        Err(_) if answer.is_empty() => {
            Err(Failure::usage(format!("the {what} is missing")).hint("type its name or path"))
        }
        Err(_) => Ok(answer),
    }
}

fn ask_model(
    draft: &mut Draft,
    near: &plimsoll_observe::dashboard::Choices,
    printer: &Printer,
) -> Result<Model, Failure> {
    use plimsoll_observe::dashboard::ModelKind;
    let folders = near.models.iter().filter(|model| model.kind == ModelKind::Folder);
    let folders = folders.map(|model| (model.name.clone(), "a folder here"));
    let cached = cached_models().into_iter().map(|id| (id, "in the Hugging Face cache"));
    let offered: Vec<(String, &str)> = folders.chain(cached).take(OFFERED_MAX).collect();
    let names: Vec<String> = offered.iter().map(|(name, _)| name.clone()).collect();
    let mut table = Table::new(&[Column::right(""), Column::left("model"), Column::left("")]);
    for (number, (name, what)) in offered.iter().enumerate() {
        table.row([(number + 1).to_string(), name.clone(), (*what).to_owned()]);
    }
    if !offered.is_empty() {
        printer.report(&[table]);
    }
    printer.note(format!("presets, which are shapes without weights: {}", preset_names().join(", ")));
    let default = names.first().unwrap_or(&draft.model).clone();
    let (name, model) = asked(printer, "model: a folder, a preset or a hub id", &default, |answer| {
        let name = picked(answer, &names, "model")?;
        Ok((name.to_owned(), Model::find(name)?))
    })?;
    draft.model = name;
    draft.is_shape = matches!(model.origin, ModelOrigin::Preset(_));
    Ok(model)
}

fn ask_data(draft: &mut Draft, model: &Model, near: &[String], printer: &Printer) -> Result<Inspected, Failure> {
    let offered: Vec<String> = near.iter().take(OFFERED_MAX).cloned().collect();
    let mut table = Table::new(&[Column::right(""), Column::left("data"), Column::right("size")]);
    for (number, path) in offered.iter().enumerate() {
        let size = fs::metadata(path).map_or_else(|_| String::new(), |data| bytes(data.len()));
        table.row([(number + 1).to_string(), path.clone(), size]);
    }
    if !offered.is_empty() {
        printer.report(&[table]);
    }
    let default = if offered.is_empty() { "" } else { "1" };
    let question = "data: files, patterns or folders, with commas between";
    let (files, found) = asked(printer, question, default, |answer| {
        let pick = |part: &str| picked(part.trim(), &offered, "file").map(str::to_owned);
        let files = answer.split(',').map(pick).collect::<Result<Vec<_>, _>>()?;
        let found = inspect(&files)?;
        if readable(&found, model).is_empty() {
            let family = model.config.family.model_type;
            return Err(Failure::bad_input(format!("a {family} model cannot be trained on rows of {}", found.format))
                .hint("models with an encoder take rows of prompt and response"));
        }
        Ok((files, found))
    })?;
    printer.note(described(&files, &found));
    take(draft, &files, &found);
    Ok(found)
}

/// Tasks that the rows and the model are both for.
fn readable(found: &Inspected, model: &Model) -> Vec<&'static str> {
    let has_encoder = model.config.streams() > 1;
    found.tasks.iter().copied().filter(|task| (*task == "seq2seq") == has_encoder).collect()
}

fn ask_task(draft: &mut Draft, tasks: &[&'static str], printer: &Printer) -> Result<(), Failure> {
    draft.task = asked(printer, &format!("task: {}", tasks.join(", ")), tasks[0], |answer| {
        if tasks.contains(&answer) {
            return Ok(answer.to_owned());
        }
        let known = TASKS.iter().any(|(name, _)| *name == answer);
        let text = match known {
            true => format!("`{answer}` is not what these rows are for"),
            false => format!("`{answer}` is no task"),
        };
        Err(Failure::usage(text).hint(format!("these rows train: {}", tasks.join(", "))))
    })?;
    if draft.task == "classification" {
        draft.classes = asked(printer, "classes: their number, or their names with commas between", "2", classes)?;
    }
    Ok(())
}

fn classes(answer: &str) -> Result<Vec<String>, Failure> {
    let names: Vec<String> = answer.split(',').map(|name| name.trim().to_owned()).collect();
    let counted = names.len() == 1 && names[0].parse::<u32>().is_ok_and(|count| count > 1);
    let named = names.len() > 1 && names.iter().all(|name| !name.is_empty());
    match counted || named {
        true => Ok(names),
        false => Err(Failure::usage(format!("`{answer}` is neither a number above 1 nor a list of names"))
            .hint("such as 3, or: no, maybe, yes")),
    }
}

fn ask_size(draft: &mut Draft, model: &Model, printer: &Printer) -> Result<(), Failure> {
    let most = model.config.max_position as u64;
    let default = MAX_LENGTH.min(most).to_string();
    draft.max_length = asked(printer, "longest sequence in tokens", &default, |answer| match answer.parse() {
        Ok(length @ 1..) if length <= most => Ok(length),
        _ => Err(Failure::usage(format!("`{answer}` is no length: the model was made for 1 to {most} tokens"))),
    })?;
    let group = if PAIRED.contains(&draft.task.as_str()) { 2 } else { 1 };
    let default = draft.sequences.to_string();
    draft.sequences = asked(printer, "sequences of an update", &default, |answer| match answer.parse::<u64>() {
        Ok(count @ 1..) if count.is_multiple_of(group) => Ok(count),
        Ok(count @ 1..) => {
            Err(Failure::usage(format!("{count} sequences cannot be paired")).hint("type an even number"))
        }
        _ => Err(Failure::usage(format!("`{answer}` is no number of sequences")).hint("type a number above 0")),
    })?;
    Ok(())
}

fn budget(answer: &str) -> Result<String, Failure> {
    if answer.parse::<f64>().is_ok() {
        return Err(
            Failure::usage(format!("`{answer}` is a budget without a unit")).hint(format!("such as {answer}GiB"))
        );
    }
    match Budget::parse(answer) {
        Ok(_) => Ok(answer.to_owned()),
        Err(error) => Err(Failure::usage(format!("`{answer}` is no budget")).hint(error.to_string())),
    }
}

/// What this machine has.
fn show_memory(near: &plimsoll_observe::dashboard::Choices, printer: &Printer) {
    let cards = plimsoll_run::Monitor::open().map(|monitor| monitor.inventory()).unwrap_or_default();
    let host = plimsoll_observe::machine::read_host(Path::new("/"), &[]);
    let mut table = Table::new(&[Column::left("memory"), Column::right("available"), Column::right("total")]);
    for (index, card) in cards.iter().enumerate() {
        let free = card.total_bytes.saturating_sub(card.used_bytes);
        table.row([format!("GPU {index} {}", card.name), bytes(free), bytes(card.total_bytes)]);
    }
    table.row(["host".to_owned(), bytes(host.available_bytes.min(near.host_bytes)), bytes(near.host_bytes)]);
    printer.report(&[table]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_for_what_was_offered() {
        let offered = ["a.jsonl".to_owned(), "b.jsonl".to_owned()];
        let check = |answer: &str, expected: Result<&str, &str>| {
            let found = picked(answer, &offered, "file");
            assert_eq!(
                found.as_deref().map_err(|failure| failure.message()),
                expected.map_err(str::to_owned),
                "{answer}"
            );
        };
        check("2", Ok("b.jsonl"));
        check("c.jsonl", Ok("c.jsonl"));
        check("0", Err("there is no file 0"));
        check("3", Err("there is no file 3"));
        check("", Err("the file is missing"));
    }

    #[test]
    fn classes_are_counted_or_named() {
        let check = |answer: &str, expected: Option<&[&str]>| {
            let found = classes(answer).ok();
            assert_eq!(
                found.as_ref().map(|c| c.iter().map(String::as_str).collect::<Vec<_>>()).as_deref(),
                expected,
                "{answer}"
            );
        };
        check("3", Some(&["3"]));
        check("no, yes", Some(&["no", "yes"]));
        check("1", None);
        check("no", None);
        check("no,,yes", None);
    }

    #[test]
    fn budgets_are_those_of_a_run_file() {
        for answer in ["auto", "12GiB", "80%"] {
            assert_eq!(budget(answer).ok().as_deref(), Some(answer));
        }
        for answer in ["12", "0GiB", "much", "120%"] {
            assert!(budget(answer).is_err(), "{answer}");
        }
    }
}
