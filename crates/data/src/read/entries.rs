//! What the user wrote under `data:` to a list of files: a path, a pattern or a folder.

use std::collections::HashSet;
use std::fs::FileType;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::file_kind::by_name;
use super::splits;
use crate::error::DataError;

/// Files that lie beside data and are none, although their names end as if they were.
const NOT_DATA: [&str; 8] = [
    "config.json",
    "dataset_dict.json",
    "dataset_info.json",
    "dataset_infos.json",
    "license.txt",
    "package.json",
    "readme.txt",
    "state.json",
];

/// In the order of the entries, sorted within each, each file once.
pub(super) fn expand<S: AsRef<str>>(entries: &[S]) -> Result<Vec<PathBuf>, DataError> {
    let mut seen = HashSet::new();
    let mut files = Vec::new();
    for entry in entries {
        for path in expand_one(entry.as_ref())? {
            let whole = path.canonicalize().map_err(|source| DataError::Open { path: path.clone(), source })?;
            if seen.insert(whole) {
                files.push(path);
            }
        }
    }
    Ok(files)
}

fn expand_one(entry: &str) -> Result<Vec<PathBuf>, DataError> {
    let path = Path::new(entry);
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => splits::in_folder(path, in_folder),
        Ok(found) if found.is_file() => Ok(vec![path.to_owned()]),
        Ok(found) => Err(DataError::NotAFile { path: path.to_owned(), what: what(found.file_type()) }),
        // A file may have a star in its name; only one that is not there can be a pattern.
        Err(_) if entry.contains(['*', '?', '[']) => matching(entry),
        Err(source) => Err(DataError::Open { path: path.to_owned(), source }),
    }
}

fn what(kind: FileType) -> &'static str {
    if kind.is_fifo() {
        "is a pipe"
    } else if kind.is_socket() {
        "is a socket"
    } else {
        "is a device"
    }
}

/// The folder's own data files, not those of folders in it: these often hold other splits.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let list = || -> io::Result<Vec<PathBuf>> { std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect() };
    let mut files = list().map_err(|source| DataError::Open { path: folder.to_owned(), source })?;
    files.retain(|path| is_data(path));
    files.sort();
    if files.is_empty() {
        return Err(DataError::NoDataInFolder { path: folder.to_owned() });
    }
    Ok(files)
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let options =
        glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };
    let found = glob::glob_with(pattern, options)
        .map_err(|error| DataError::BadPattern { pattern: pattern.to_owned(), reason: error.msg.to_owned() })?;
    let mut files = Vec::new();
    for path in found {
        let path = path.map_err(|error| DataError::Open { path: error.path().to_owned(), source: error.into() })?;
        if is_data(&path) {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(DataError::NoMatch { pattern: pattern.to_owned() });
    }
    Ok(files)
}

fn is_data(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // `datasets` leaves the results of its own steps beside what they were made from.
    let result = name.starts_with("cache-") && name.ends_with(".arrow");
    let named_so = !result && !name.starts_with(['.', '_']) && !NOT_DATA.contains(&name.to_ascii_lowercase().as_str());
    named_so && by_name(path).is_some() && path.is_file()
}
