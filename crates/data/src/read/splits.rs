//! Folders that Hugging Face's libraries keep data in: what `save_to_disk` wrote, the cache of `datasets`, and the cache of
//! files from the hub. They may hold several splits; only one of them can be meant.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::DataError;

/// The word by which a file's name says its split, among what else is in it.
const SPLITS: [&str; 8] = ["train", "test", "validation", "valid", "val", "dev", "eval", "unsupervised"];

/// The data files of a folder; `own` lists those of one that is none of the above.
pub(super) fn in_folder(
    folder: &Path,
    own: impl Fn(&Path) -> Result<Vec<PathBuf>, DataError>,
) -> Result<Vec<PathBuf>, DataError> {
    if let Some(splits) =
        read_json(&folder.join("dataset_dict.json"))?.as_ref().and_then(|dict| dict["splits"].as_array())
    {
        let splits: Vec<&str> = splits.iter().filter_map(Value::as_str).collect();
        let [only] = splits[..] else { return Err(several(folder, splits.iter().copied(), "{}/{}")) };
        return in_folder(&folder.join(only), own);
    }
    let state = folder.join("state.json");
    if let Some(files) = read_json(&state)?.as_ref().and_then(|state| state["_data_files"].as_array()) {
        return saved(folder, &state, files);
    }
    if let Some(snapshot) = snapshot_of(folder) {
        let files = own(&snapshot).or_else(|error| own(&snapshot.join("data")).map_err(|_| error))?;
        return one_split(folder, files);
    }
    let files = own(folder)?;
    if folder.join("dataset_info.json").is_file() { one_split(folder, files) } else { Ok(files) }
}

fn read_json(path: &Path) -> Result<Option<Value>, DataError> {
    match fs::read(path) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DataError::Open { path: path.to_owned(), source }),
    }
}

/// The files that `save_to_disk` lists, in its order.
fn saved(folder: &Path, state: &Path, files: &[Value]) -> Result<Vec<PathBuf>, DataError> {
    let bad = |reason: &str| DataError::BadArrow { path: state.to_owned(), reason: reason.to_owned() };
    let path = |file: &Value| {
        let name = file["filename"].as_str().ok_or_else(|| bad("it lists a file without a name"))?;
        let within = Path::new(name).file_name().is_some_and(|own| own == name);
        if within { Ok(folder.join(name)) } else { Err(bad("it lists a file outside of its folder")) }
    };
    files.iter().map(path).collect()
}

/// `datasets--owner--name` in the hub's cache: the revision last asked for by the name of its main branch.
fn snapshot_of(folder: &Path) -> Option<PathBuf> {
    let revision = fs::read_to_string(folder.join("refs/main")).ok()?;
    let snapshot = folder.join("snapshots").join(revision.trim());
    snapshot.is_dir().then_some(snapshot)
}

fn one_split(folder: &Path, files: Vec<PathBuf>) -> Result<Vec<PathBuf>, DataError> {
    let splits: BTreeSet<&str> = files.iter().filter_map(|file| split_of(file)).collect();
    if splits.len() < 2 {
        return Ok(files);
    }
    let beside = files.first().and_then(|file| file.parent()).unwrap_or(folder);
    Err(several(beside, splits.iter().copied(), "{}/*{}*"))
}

fn split_of(file: &Path) -> Option<&'static str> {
    let stem = file.file_stem()?.to_str()?;
    stem.split(['-', '.', '_']).rev().find_map(|word| SPLITS.into_iter().find(|split| *split == word))
}

/// `pattern` is made of the folder and the split.
fn several<'a>(folder: &Path, splits: impl Iterator<Item = &'a str> + Clone, pattern: &str) -> DataError {
    let first = splits.clone().find(|split| *split == "train").or(splits.clone().next()).unwrap_or("train");
    let example = pattern.replacen("{}", &folder.display().to_string(), 1).replacen("{}", first, 1);
    DataError::SeveralSplits { path: folder.to_owned(), splits: splits.collect::<Vec<_>>().join(", "), example }
}
