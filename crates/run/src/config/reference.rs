//! The reference of every key, for people and scripts.

use serde::Serialize;

use super::check::nearest_path;
use super::schema;
use crate::failure::Failure;

/// One key of the run file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyReference {
    pub path: String,
    /// What it may hold, in words.
    pub values: String,
    /// In YAML.
    pub default: Option<&'static str>,
    pub help: String,
}

/// The keys at and below a dotted path, parents before children; every key for none.
pub fn reference(path: Option<&str>) -> Result<Vec<KeyReference>, Failure> {
    let is_below = |key: &str| match path {
        Some(path) => key == path || key.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')),
        None => true,
    };
    let found: Vec<KeyReference> = (schema::all().into_iter())
        .filter(|(path, _)| is_below(path))
        .map(|(path, key)| KeyReference { path, values: key.form.allowed(), default: key.default, help: key.help() })
        .collect();
    match path {
        Some(path) if found.is_empty() => Err(unknown(path)),
        _ => Ok(found),
    }
}

/// docs/keys.md: every key with what it may hold, its default and its help, a table for each section.
pub fn reference_page() -> String {
    let keys: Vec<_> = schema::all();
    let mut page = PAGE_HEAD.to_owned();
    let (sections, plain): (Vec<_>, Vec<_>) = keys.iter().partition(|(path, key)| {
        path.contains('.') || key.form.section().is_some_and(|section| !section.keys.is_empty())
    });
    page += &table(&plain.into_iter().cloned().collect::<Vec<_>>());
    for (path, key) in sections.iter().filter(|(path, _)| !path.contains('.')) {
        let below: Vec<_> = keys.iter().filter(|(other, _)| other.starts_with(&format!("{path}."))).cloned().collect();
        let values = match key.form {
            schema::Form::Either(kind, _) => format!(" As a single value: {}.", kind.allowed()),
            _ => String::new(),
        };
        let default = key.default.map_or_else(String::new, |default| format!(" Default: `{default}`."));
        page += &format!("\n## {path}\n\n{}.{values}{default}\n\n{}", key.help(), table(&below));
    }
    page
}

const PAGE_HEAD: &str = "\
# Keys of a run file

`plimsoll keys` prints this reference, `plimsoll keys optimizer` a part of it, and `plimsoll keys --markdown` this page.

A key can be set by its flag where it has one, with `--set KEY=VALUE`, in the environment as `PLIMSOLL_KEY` (upper case, `_`
for `.`), or in the run file, in this order of precedence. Relative paths in a run file are relative to the folder that the
file is in; everywhere else they are relative to the current folder.

";

fn table(keys: &[(String, &'static schema::Key)]) -> String {
    let mut table = "| key | default | values | help |\n|---|---|---|---|\n".to_owned();
    for (path, key) in keys {
        let default = key.default.map_or_else(String::new, |default| format!("`{default}`"));
        let cells = [format!("`{path}`"), default, key.form.allowed(), key.help()];
        table += &format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    table
}

fn unknown(path: &str) -> Failure {
    let failure = Failure::usage(format!("unknown key `{path}`"));
    let name = path.rsplit('.').next().unwrap_or(path);
    let failure = match nearest_path(name, schema::ROOT, "") {
        Some(known) => failure.hint(format!("did you mean `{known}`?")),
        None => failure,
    };
    failure.hint("`plimsoll keys` lists every key")
}
