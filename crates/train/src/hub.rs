//! Models that other programs have downloaded: the cache of the Hugging Face hub. Nothing is fetched.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// Whether a name could be one of the hub's: `ORGANISATION/NAME`.
pub(crate) fn is_id(name: &str) -> bool {
    let is_part = |part: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && part.chars().all(allowed)
    };
    name.split_once('/').is_some_and(|(organisation, name)| is_part(organisation) && is_part(name))
}

/// The folder of a model's files in the cache, by its name on the hub.
pub fn hub_snapshot(id: &str) -> Option<PathBuf> {
    is_id(id).then(|| snapshot(&cache(), id)).flatten()
}

/// The names of all models in the cache, sorted.
pub fn cached_models() -> Vec<String> {
    models_in(&cache())
}

fn models_in(cache: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(cache) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let id = |name: String| name.strip_prefix("models--").map(|name| name.replacen("--", "/", 1));
    let mut ids: Vec<String> = names.filter_map(id).filter(|id| is_id(id) && snapshot(cache, id).is_some()).collect();
    ids.sort();
    ids
}

/// Where the hub's own library keeps what it has downloaded.
pub(crate) fn cache() -> PathBuf {
    cache_of(|name| env::var_os(name).filter(|value| !value.is_empty()))
}

fn cache_of(variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    if let Some(cache) = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")) {
        return cache.into();
    }
    let home = || {
        let caches = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let caches = caches.unwrap_or_else(|| PathBuf::from(variable("HOME").unwrap_or_default()).join(".cache"));
        caches.join("huggingface")
    };
    variable("HF_HOME").map_or_else(home, PathBuf::from).join("hub")
}

/// The snapshot of a model's main branch, or the only one there is.
pub(crate) fn snapshot(cache: &Path, id: &str) -> Option<PathBuf> {
    let model = cache.join(format!("models--{}", id.replace('/', "--")));
    let snapshots = model.join("snapshots");
    let main = fs::read_to_string(model.join("refs/main")).ok().map(|revision| snapshots.join(revision.trim()));
    let only = || {
        let mut folders = fs::read_dir(&snapshots).ok()?.flatten().map(|entry| entry.path());
        let first = folders.next()?;
        folders.next().is_none().then_some(first)
    };
    main.or_else(only).filter(|folder| folder.join("config.json").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids() {
        for (name, expected) in [
            ("Qwen/Qwen2.5-0.5B", true),
            ("_x/y_z", true),
            ("qwen3-0.6b", false),
            ("./models/x", false),
            ("../x", false),
            ("models/", false),
            ("/x", false),
            ("a/b/c", false),
            ("~/x", false),
            ("C:\\x/y", false),
        ] {
            assert_eq!(is_id(name), expected, "{name}");
        }
    }

    #[test]
    fn the_cache_is_where_the_hub_s_library_has_it() {
        let check = |set: &[(&str, &str)], expected: &str| {
            let find =
                |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
            assert_eq!(cache_of(find), Path::new(expected), "{set:?}");
        };
        check(&[("HOME", "/h")], "/h/.cache/huggingface/hub");
        check(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c")], "/c/huggingface/hub");
        check(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/f")], "/f/hub");
        check(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/hub")], "/hub");
        check(&[("HF_HOME", "/f"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/old");
    }

    #[test]
    fn the_main_branch_or_the_only_snapshot() {
        let cache = tempfile::TempDir::new().unwrap();
        let model = cache.path().join("models--org--name");
        let add = |revision: &str| {
            let folder = model.join("snapshots").join(revision);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("config.json"), "{}").unwrap();
            folder
        };
        let found = || snapshot(cache.path(), "org/name");
        assert_eq!(found(), None);
        let first = add("aaaa");
        assert_eq!(found(), Some(first));
        let second = add("bbbb");
        assert_eq!(found(), None, "which of them is not known");
        fs::create_dir(model.join("refs")).unwrap();
        fs::write(model.join("refs/main"), "bbbb\n").unwrap();
        assert_eq!(found(), Some(second.clone()));
        fs::remove_file(second.join("config.json")).unwrap();
        assert_eq!(found(), None, "a download that did not finish");
    }
}
