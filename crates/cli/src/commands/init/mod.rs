//! `plimsoll init`: a commented run file to start from, by questions or by flags.

mod choosing;
mod draft;
mod questions;

use std::path::Path;

use plimsoll_run::config::{Method, Source, load};
use plimsoll_run::{Failure, Inspected, bytes, inspect};
use serde_json::json;

use crate::args::{InitArgs, InitMethod, Preset};
use crate::language;
use crate::printer::Printer;
use draft::{Draft, lora};

/// Of fewer rows none are held out.
const HELD_OUT_ROWS_MIN: u64 = 100;

pub fn run(args: &InitArgs, printer: &Printer) -> Result<(), Failure> {
    let path = &args.file;
    let shown = path.display();
    if path.exists() && !args.force {
        return Err(
            Failure::usage(format!("{shown} already exists")).hint("choose another file, or overwrite it with --force")
        );
    }
    let asks = printer.can_ask() && !args.is_answered();
    let draft = if asks { questions::answered(printer)? } else { by_flags(args, printer)? };
    let folder = path.parent().unwrap_or(Path::new(""));
    plimsoll_files::write(path, language::commented(&draft.yaml(folder), printer.language()).as_bytes())
        .map_err(|error| Failure::failed(format!("cannot write {shown}: {error}")))?;
    if printer.is_json() {
        printer.json(&json!({"file": path, "model": draft.model, "task": draft.task, "data": draft.data}));
        return Ok(());
    }
    printer.note(format!("wrote {shown}"));
    printer.note(match (draft.data.is_empty(), draft.is_shape) {
        (true, _) => format!("next: set `data.train` in it, then run `plimsoll plan {shown}`"),
        (_, true) => format!("next: set `model` in it to a folder with weights; until then `plimsoll plan {shown}`"),
        _ => format!("next: `plimsoll train {shown}`"),
    });
    Ok(())
}

/// What flags say, on top of a preset.
fn by_flags(args: &InitArgs, printer: &Printer) -> Result<Draft, Failure> {
    let mut draft = Draft::of(args.preset.unwrap_or(Preset::Balanced));
    set_if(&mut draft.model, &args.model);
    if !args.data.is_empty() {
        let found = inspect(&args.data)?;
        printer.note(described(&args.data, &found));
        take(&mut draft, &args.data, &found);
        if let Some(task) = found.tasks.first() {
            draft.task = (*task).to_owned();
        }
    }
    set_if(&mut draft.task, &args.task);
    set_if(&mut draft.gpu, &args.gpu);
    set_if(&mut draft.host, &args.host);
    draft.device.clone_from(&args.device);
    draft.max_length = args.max_length.unwrap_or(draft.max_length);
    draft.sequences = args.sequences.unwrap_or(draft.sequences);
    draft.method = match args.method {
        None => draft.method,
        Some(InitMethod::Full) => Method::Full { freeze: Vec::new() },
        Some(InitMethod::Lora(rank)) => lora(rank.unwrap_or(16)),
    };
    // What flags say is checked as a run file is.
    load(Source::Embedded { name: "init", text: &draft.yaml(Path::new("")) }, &InitArgs::overrides())?;
    Ok(draft)
}

fn set_if(value: &mut String, given: &Option<String>) {
    if let Some(given) = given {
        value.clone_from(given);
    }
}

/// What was found out about the data goes into the draft.
fn take(draft: &mut Draft, data: &[String], found: &Inspected) {
    draft.data = data.to_vec();
    draft.found = Some(format!("{}, {}", found.format, counted(found)));
    draft.holds_out = found.rows >= HELD_OUT_ROWS_MIN || !found.all_counted;
}

fn counted(found: &Inspected) -> String {
    if found.all_counted { format!("{} rows", found.rows) } else { format!("more than {} rows", found.rows) }
}

fn described(data: &[String], found: &Inspected) -> String {
    format!("{}: detected format: {}, {}, {}", data.join(", "), found.format, counted(found), bytes(found.bytes))
}
