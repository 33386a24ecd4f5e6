//! `plimsoll export`: what was trained, for other programs.

use std::num::NonZeroUsize;
use std::path::Path;

use clap::ValueEnum;
use plimsoll_run::config::load_run;
use plimsoll_run::{Artifact, Failure, Offload, TrainerFigures, bytes, trainer_figures};
use plimsoll_train::{GgufReport, GgufType, export_gguf};
use serde_json::json;

use crate::args::{ExportArgs, ExportFormat, StoredType};
use crate::printer::Printer;

pub fn run(args: &ExportArgs, printer: &Printer) -> Result<(), Failure> {
    refuse_to_overwrite(&args.out, args.force)?;
    match args.to {
        ExportFormat::Gguf => gguf(args, printer),
        ExportFormat::Deepspeed | ExportFormat::Accelerate => trainer(args, printer),
    }
}

/// Flags that say nothing about what is written.
fn refuse(args: &ExportArgs, flags: &[(&str, bool)]) -> Result<(), Failure> {
    let format = args.to.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    match flags.iter().find(|(_, given)| *given) {
        Some((flag, _)) => {
            Err(Failure::usage(format!("{flag} means nothing for --to {format}")).hint(format!("remove {flag}")))
        }
        None => Ok(()),
    }
}

/// The plan of a run, or of the run in a folder, in the words of another trainer.
fn trainer(args: &ExportArgs, printer: &Printer) -> Result<(), Failure> {
    refuse(args, &[("--type", args.stored.is_some()), ("--paranoid", args.device.paranoid)])?;
    let source = Path::new(&args.source);
    let file = if source.is_dir() { source.join("run.yaml") } else { source.to_owned() };
    let resolved = load_run(Some(&file), &args.device.overrides(&None))?;
    let figures = trainer_figures(&resolved, args.gpus.map_or(1, NonZeroUsize::get))?;
    let text = if args.to == ExportFormat::Deepspeed { figures.deepspeed()? } else { figures.accelerate() };
    let unwritten = |error| Failure::failed(format!("cannot write {}: {error}", args.out.display()));
    plimsoll_files::write(&args.out, text.as_bytes()).map_err(unwritten)?;
    figures.notes.iter().for_each(|note| printer.note(note));
    let TrainerFigures { gpus, sequences, micro_batch, accumulation, offload, .. } = &figures;
    let offloaded = match offload {
        Offload::None => "nothing",
        Offload::Optimizer => "the optimizer's state",
        Offload::Parameters => "weights, gradients and the optimizer's state",
    };
    if printer.is_json() {
        printer.json(&json!({
            "out": args.out.display().to_string(), "gpus": gpus, "sequences": sequences, "micro_batch": micro_batch,
            "accumulation": accumulation, "offloaded": offloaded, "notes": figures.notes,
        }));
    } else {
        printer.data(format!(
            "{}: {sequences} sequences per update = {gpus} GPU × micro-batch {micro_batch} × accumulation {accumulation}; \
             in host memory: {offloaded}",
            args.out.display()
        ));
    }
    Ok(())
}

fn refuse_to_overwrite(path: &Path, force: bool) -> Result<(), Failure> {
    if path.exists() && !force {
        return Err(Failure::usage(format!("{} already exists", path.display()))
            .hint("choose another file with --out, or overwrite it with --force"));
    }
    Ok(())
}

fn gguf(args: &ExportArgs, printer: &Printer) -> Result<(), Failure> {
    let device = &args.device;
    refuse(
        args,
        &[
            ("--gpus", args.gpus.is_some()),
            ("--device", device.device.is_some()),
            ("--gpu", device.gpu.is_some()),
            ("--host", device.host.is_some()),
            ("--set", !device.set.is_empty()),
            ("--paranoid", device.paranoid),
        ],
    )?;
    let artifact = Artifact::find(&args.source, None)?;
    let stored = args.stored.map(|stored| match stored {
        StoredType::F32 => GgufType::F32,
        StoredType::F16 => GgufType::F16,
        StoredType::Bf16 => GgufType::BF16,
        StoredType::Q8_0 => GgufType::Q8_0,
    });
    let tokenizer = artifact.tokenizer_folder();
    let report = export_gguf(&artifact.model, artifact.adapter.as_ref(), &tokenizer, stored, &args.out)?;
    for note in &report.notes {
        printer.warning(note);
    }
    say(&report, &args.out, printer);
    Ok(())
}

fn say(report: &GgufReport, out: &Path, printer: &Printer) {
    let GgufReport { bytes: size, tensors, stored, .. } = report;
    if printer.is_json() {
        printer.json(&json!({
            "out": out.display().to_string(), "bytes": size, "tensors": tensors, "type": stored.name(), "notes": report.notes,
        }));
    } else {
        printer.data(format!("{}: {tensors} tensors, matrices in {}, {}", out.display(), stored.name(), bytes(*size)));
    }
}
