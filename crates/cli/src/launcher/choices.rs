//! What there is to train: run files, models and data below some folders, and what comes with the program.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_observe::dashboard::{Card, Choices, Model, ModelKind};
use plimsoll_observe::machine::read_host;
use plimsoll_run::{Monitor, preset_names};
use plimsoll_train::TASKS;

/// How deep folders are looked through, how many entries are looked at, and how many of a kind are offered.
const DEPTH_MAX: usize = 5;
const ENTRIES_MAX: usize = 20_000;
const OFFERED_MAX: usize = 300;
/// A run file is small.
const RUN_FILE_BYTES_MAX: u64 = 64 << 10;
/// Folders in which nobody keeps models or data.
const PASSED_OVER: [&str; 4] = ["target", "node_modules", "__pycache__", "checkpoints"];
const DATA: [&str; 8] = ["jsonl", "ndjson", "json", "csv", "tsv", "parquet", "arrow", "txt"];
const PACKED: [&str; 2] = [".gz", ".zst"];

/// Looks through `folders`; `runs` is where runs are, of which only the last weights are models.
pub fn found(folders: &[PathBuf], runs: &Path) -> Choices {
    let mut walk = Walk { entries: 0, runs: runs.canonicalize().ok(), choices: Choices::default() };
    folders.iter().for_each(|folder| walk.folder(folder, 0));
    let mut choices = walk.choices;
    let model = |kind, word: String, name: &str| Model { word, kind, name: name.to_owned() };
    for list in [&mut choices.data, &mut choices.tokenizers] {
        list.sort();
        list.dedup();
        list.truncate(OFFERED_MAX);
    }
    choices.models.sort_by(|a, b| (a.kind as u8, &a.name).cmp(&(b.kind as u8, &b.name)));
    choices.models.dedup();
    choices.models.truncate(OFFERED_MAX);
    choices.models.insert(0, model(ModelKind::Quickstart, "quickstart".to_owned(), "quickstart"));
    let presets = preset_names().into_iter().map(|name| model(ModelKind::Preset, format!("preset:{name}"), &name));
    choices.models.extend(presets);
    choices.tasks = TASKS.iter().map(|(name, _)| (*name).to_owned()).collect();
    let cards = Monitor::open().map(|monitor| monitor.inventory()).unwrap_or_default();
    choices.gpus = cards.iter().map(|card| Card { name: card.name.clone(), bytes: card.total_bytes }).collect();
    choices.gpus.sort_by_key(|card| std::cmp::Reverse(card.bytes));
    choices.host_bytes = read_host(Path::new("/"), &[]).limit_bytes;
    choices
}

struct Walk {
    entries: usize,
    runs: Option<PathBuf>,
    choices: Choices,
}

impl Walk {
    fn folder(&mut self, folder: &Path, depth: usize) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        let mut entries: Vec<_> = entries.filter_map(Result::ok).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        let has = |name: &str| entries.iter().any(|entry| entry.file_name() == name);
        let shown = folder.strip_prefix(".").unwrap_or(folder).display().to_string();
        let (is_model, has_tokenizer) = (has("config.json"), has("tokenizer.json"));
        if is_model && !shown.is_empty() {
            self.model(ModelKind::Folder, "folder", &shown);
        }
        if has_tokenizer && !shown.is_empty() {
            self.choices.tokenizers.push(shown);
        }
        // What lies in a run's folder is the run's.
        let is_run = has(".plimsoll-run");
        for entry in entries {
            self.entries += 1;
            let name = entry.file_name();
            // Only what can be written on a page and on a command line.
            let (Some(name), true) = (name.to_str(), self.entries <= ENTRIES_MAX) else { continue };
            let path = folder.join(name);
            // Links to folders are not followed, so that there is an end.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if name.starts_with('.') || PASSED_OVER.contains(&name) {
                continue;
            }
            if is_folder {
                if depth < DEPTH_MAX && (!is_run || name == "final") {
                    self.folder(&path, depth + 1);
                }
            } else if path.is_file() && !is_run && !is_model && !has_tokenizer {
                self.file(&path, name);
            }
        }
    }

    fn file(&mut self, path: &Path, name: &str) {
        let shown = path.strip_prefix(".").unwrap_or(path).display().to_string();
        let plain = PACKED.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        match plain.rsplit_once('.').map(|(_, end)| end) {
            Some("yaml" | "yml") if is_run_file(path) => self.model(ModelKind::File, "file", &shown),
            Some(end) if DATA.contains(&end) => self.choices.data.push(shown),
            _ => {}
        }
    }

    fn model(&mut self, kind: ModelKind, word: &str, name: &str) {
        let below_runs = |runs: &PathBuf| Path::new(name).canonicalize().is_ok_and(|path| path.starts_with(runs));
        // What a run has written is a model; what was written there by hand is somebody's notes.
        if kind == ModelKind::File && self.runs.as_ref().is_some_and(below_runs) {
            return;
        }
        self.choices.models.push(Model { word: format!("{word}:{name}"), kind, name: name.to_owned() });
    }
}

/// Whether a file says which model to train.
fn is_run_file(path: &Path) -> bool {
    let small = fs::metadata(path).is_ok_and(|data| data.len() <= RUN_FILE_BYTES_MAX);
    small && fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line.starts_with("model:")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_data_and_run_files_are_found() {
        let root = tempfile::tempdir().expect("a folder");
        for name in [
            "model/config.json",
            "model/tokenizer.json",
            "model/notes.txt",
            "data/a.jsonl",
            "data/b.parquet",
            "data/c.json.gz",
            "data/picture.png",
            ".hidden/d.jsonl",
            "target/e.jsonl",
            "runs/one/.plimsoll-run",
            "runs/one/metrics.jsonl",
            "runs/one/run.yaml",
            "runs/one/final/config.json",
            "runs/one/checkpoints/step-1/config.json",
        ] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("a parent")).expect("writable");
            fs::write(path, "").expect("writable");
        }
        fs::write(root.path().join("run.yaml"), "# mine\nmodel: tiny\n").expect("writable");
        fs::write(root.path().join("other.yaml"), "services: []\n").expect("writable");
        std::os::unix::fs::symlink(root.path(), root.path().join("data/round")).expect("a link");
        let choices = found(&[root.path().to_owned()], &root.path().join("runs"));
        let short = |path: &str| path.replace(&format!("{}/", root.path().display()), "");
        let of = |kind| {
            let models = choices.models.iter().filter(|model| model.kind == kind);
            models.map(|model| short(&model.word)).collect::<Vec<_>>()
        };
        assert_eq!(of(ModelKind::Quickstart), ["quickstart"]);
        assert_eq!(of(ModelKind::File), ["file:run.yaml"]);
        assert_eq!(of(ModelKind::Folder), ["folder:model", "folder:runs/one/final"]);
        assert!(of(ModelKind::Preset).contains(&"preset:qwen3-0.6b".to_owned()));
        let data: Vec<String> = choices.data.iter().map(|path| short(path)).collect();
        assert_eq!(data, ["data/a.jsonl", "data/b.parquet", "data/c.json.gz"]);
        assert_eq!(choices.tokenizers.iter().map(|path| short(path)).collect::<Vec<_>>(), ["model"]);
        assert!(choices.host_bytes > 0 && choices.tasks.contains(&"sft".to_owned()));
    }
}
