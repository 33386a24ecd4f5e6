//! `plimsoll init`: a commented run file to start from.

use plimsoll_run::Failure;
use plimsoll_run::config::quoted;

use crate::args::{InitArgs, Preset};
use crate::language;
use crate::printer::Printer;

pub fn run(args: &InitArgs, printer: &Printer) -> Result<(), Failure> {
    let path = &args.file;
    let shown = path.display();
    if path.exists() && !args.force {
        return Err(
            Failure::usage(format!("{shown} already exists")).hint("choose another file, or overwrite it with --force")
        );
    }
    plimsoll_files::write(path, language::commented(&text(args.preset, &args.model), printer.language()).as_bytes())
        .map_err(|error| Failure::failed(format!("cannot write {shown}: {error}")))?;
    printer.note(format!("wrote {shown}"));
    printer.note(format!("next: set `data.train` in it, then run `plimsoll plan {shown}`"));
    Ok(())
}

fn text(preset: Preset, model: &str) -> String {
    let template = match preset {
        Preset::LowMemory => include_str!("../presets/low-memory.yaml"),
        Preset::Balanced => include_str!("../presets/balanced.yaml"),
        Preset::Fastest => include_str!("../presets/fastest.yaml"),
    };
    template.replace("{model}", &quoted(model))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use plimsoll_run::config::{Method, ModelSource, Overrides, Source, load};

    #[test]
    fn every_preset_is_a_valid_run() {
        for preset in Preset::value_variants() {
            let text = text(*preset, "org/model: odd");
            let source = Source::Embedded { name: "preset", text: &text };
            let run = load(source, &Overrides::default()).unwrap().run;
            assert_eq!(run.model, ModelSource::Name("org/model: odd".to_owned()));
            assert_eq!(matches!(run.method, Method::Lora(_)), *preset != Preset::Fastest);
        }
    }
}
