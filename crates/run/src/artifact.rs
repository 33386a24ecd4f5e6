//! What a path stands for: a model's folder, an adapter with its base, or what a run has left.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_train::{AdapterFolder, Model, ModelOrigin};

use crate::failure::Failure;

/// A model to be used as it is.
#[derive(Debug)]
pub struct Artifact {
    pub model: Model,
    pub adapter: Option<AdapterFolder>,
}

impl Artifact {
    /// The model at `path`, with the adapter at `adapter` or the one that is there.
    pub fn find(path: &str, adapter: Option<&Path>) -> Result<Self, Failure> {
        let folder = trained_folder(Path::new(path));
        let adapter = adapter.map(trained_folder);
        if AdapterFolder::is_one(&folder) {
            if let Some(second) = adapter {
                let message = format!("{} is an adapter and cannot take {} on top", folder.display(), second.display());
                return Err(Failure::usage(message).hint("give the base model and one adapter"));
            }
            let adapter = AdapterFolder::open(&folder)?;
            let base = base_of(&adapter)?;
            return Ok(Self { model: with_weights(&base)?, adapter: Some(adapter) });
        }
        let model = match folder.is_dir() {
            true => with_weights(&folder)?,
            false => Model::find(path).map_err(Failure::from).and_then(refuse_preset)?,
        };
        let adapter = adapter.as_deref().map(AdapterFolder::open).transpose()?;
        Ok(Self { model, adapter })
    }

    /// Where the tokenizer is: beside the adapter, which was trained with it, or beside the base.
    pub fn tokenizer_folder(&self) -> PathBuf {
        let beside_adapter = self.adapter.as_ref().map(|adapter| adapter.path.clone());
        let has_one = |folder: &PathBuf| folder.join("tokenizer.json").exists();
        beside_adapter.filter(has_one).or_else(|| self.model.folder().map(Path::to_owned)).unwrap_or_default()
    }
}

/// The folder a run ended with, else its newest checkpoint, else the folder itself.
pub fn trained_folder(folder: &Path) -> PathBuf {
    let last = folder.join("final");
    if last.is_dir() {
        return last;
    }
    let entries = fs::read_dir(folder.join("checkpoints")).into_iter().flatten().filter_map(Result::ok);
    let step = |path: &Path| path.file_name()?.to_str()?.strip_prefix("step-")?.parse::<u64>().ok();
    let newest = entries.filter_map(|entry| Some((step(&entry.path())?, entry.path()))).max();
    newest.map_or_else(|| folder.to_owned(), |(_, path)| path)
}

fn with_weights(folder: &Path) -> Result<Model, Failure> {
    Ok(Model::find(&folder.display().to_string())?)
}

fn refuse_preset(model: Model) -> Result<Model, Failure> {
    match &model.origin {
        ModelOrigin::Preset(name) => Err(Failure::bad_input(format!("the preset `{name}` has no weights"))
            .hint("give the folder of a downloaded model, a run folder or an adapter")),
        _ => Ok(model),
    }
}

/// The base is named as whoever trained saw it: from here, or from a folder above the adapter.
fn base_of(adapter: &AdapterFolder) -> Result<PathBuf, Failure> {
    let seen_from = std::iter::once(Path::new("")).chain(adapter.path.ancestors().skip(1));
    let found = seen_from.map(|from| from.join(&adapter.base)).find(|base| base.join("config.json").is_file());
    found.ok_or_else(|| {
        Failure::bad_input(format!(
            "the base of the adapter {} is `{}`, and there is no model there",
            adapter.path.display(),
            adapter.base
        ))
        .hint(format!(
            "give both: plimsoll generate BASE --adapter {0}, or plimsoll merge {0} --base BASE",
            adapter.path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_stands_for_what_it_has_left() {
        let run = tempfile::tempdir().unwrap();
        let at = |name: &str| run.path().join(name);
        assert_eq!(trained_folder(run.path()), run.path());
        for step in ["step-9", "step-100", "step-20", "other"] {
            fs::create_dir_all(at("checkpoints").join(step)).unwrap();
        }
        assert_eq!(trained_folder(run.path()), at("checkpoints/step-100"));
        fs::create_dir(at("final")).unwrap();
        assert_eq!(trained_folder(run.path()), at("final"));
    }
}
