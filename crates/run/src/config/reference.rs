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
    let found: Vec<KeyReference> = (schema::paths().into_iter())
        .filter(|(path, _)| is_below(path))
        .map(|(path, key)| KeyReference { path, values: key.form.allowed(), default: key.default, help: key.help() })
        .collect();
    match path {
        Some(path) if found.is_empty() => Err(unknown(path)),
        _ => Ok(found),
    }
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
