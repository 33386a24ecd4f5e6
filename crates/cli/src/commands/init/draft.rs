//! What a run file is to hold, and the file itself: every line with what it means.

use std::fmt::Write;
use std::path::Path;

use plimsoll_run::config::{BaseFormat, Lora, Method, StateStorage, Targets, quoted};

use crate::args::Preset;

/// A run to be written down. Paths are relative to the current folder.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// What was chosen, in words; none where nothing was planned.
    pub chosen: Option<String>,
    pub model: String,
    /// Whether the model is a shape without weights.
    pub is_shape: bool,
    pub device: Option<String>,
    pub task: String,
    /// Of a classification: their number, or their names.
    pub classes: Vec<String>,
    pub method: Method,
    /// How frozen weights are stored, where that is not left to the run.
    pub base: BaseFormat,
    pub data: Vec<String>,
    /// What was found in the data.
    pub found: Option<String>,
    /// Whether some rows can be held out for evaluation.
    pub holds_out: bool,
    pub max_length: u64,
    pub sequences: u64,
    pub gpu: String,
    pub host: String,
    pub goal: &'static str,
    pub optimizer: String,
    pub state: StateStorage,
}

/// Where comments begin.
const COMMENTS_AT: usize = 32;
/// Rates that these methods usually train well with.
const LR_LORA: &str = "2e-4";
const LR_FULL: &str = "2e-5";

impl Draft {
    /// What a preset stands for, with nothing known of the data.
    pub fn of(preset: Preset) -> Self {
        let (method, max_length, sequences, budget, goal) = match preset {
            Preset::LowMemory => (lora(8), 512, 16, "auto", "lowest"),
            Preset::Balanced => (lora(16), 1024, 32, "80%", "fastest"),
            Preset::Fastest => (Method::Full { freeze: Vec::new() }, 1024, 64, "auto", "fastest"),
        };
        Self {
            chosen: None,
            model: "qwen3-0.6b".to_owned(),
            is_shape: false,
            device: None,
            task: "sft".to_owned(),
            classes: Vec::new(),
            method,
            base: BaseFormat::Auto,
            data: Vec::new(),
            found: None,
            holds_out: false,
            max_length,
            sequences,
            gpu: budget.to_owned(),
            host: budget.to_owned(),
            goal,
            optimizer: "adamw".to_owned(),
            state: StateStorage::Fp32,
        }
    }

    /// The run file, for the folder it will be in.
    pub fn yaml(&self, folder: &Path) -> String {
        let mut text = Lines::default();
        text.remark("Written by `plimsoll init`; every key can be changed, and `plimsoll keys` lists all there are.");
        text.remark("`plimsoll plan` shows what it takes and what else there is, `plimsoll train` trains it.");
        if let Some(chosen) = &self.chosen {
            text.remark(&format!("Chosen: {chosen}"));
        }
        text.bare("");
        self.model_lines(folder, &mut text);
        self.method_lines(&mut text);
        text.bare("");
        self.data_lines(folder, &mut text);
        text.bare("");
        text.key(&format!("batch: {{sequences: {}}}", self.sequences), "of an update, exact; the planner divides it");
        text.key("memory:", "ceilings: what the run must never exceed");
        text.key(&format!("  gpu: {}", self.gpu), "12GiB, 80% of the available memory, or auto");
        text.key(&format!("  host: {}", self.host), "the same for the host's memory");
        text.key(&format!("  goal: {}", self.goal), "fastest plan that fits, or lowest memory");
        text.bare("");
        self.optimizer_line(&mut text);
        text.key("schedule: {name: cosine, warmup: 0.03, epochs: 1}", "learning rate over time, length of the run");
        text.key("clip: 1.0", "largest gradient norm; none does not clip");
        let eval = if self.holds_out { "eval: {every: 200}" } else { "# eval: {every: 200}" };
        text.key(eval, "evaluate every so many updates");
        text.key("save: {every: 200, keep: 2}", "checkpoints, and how many are kept");
        text.key("seed: 42", "of everything random");
        text.0
    }

    fn model_lines(&self, folder: &Path, text: &mut Lines) {
        let model = if Path::new(&self.model).is_dir() { seen_from(folder, &self.model) } else { self.model.clone() };
        text.key(&format!("model: {}", quoted(&model)), "a preset, a local Hugging Face folder or a hub id");
        if self.is_shape {
            text.key("# init: random", "a preset has no weights: name a folder above, or begin at random");
        }
        if let Some(device) = &self.device {
            text.key(&format!("device: {}", quoted(device)), "cpu, cuda:0, or a GPU to plan for");
        }
        text.key(&format!("task: {}", self.task), task_help(&self.task));
    }

    fn method_lines(&self, text: &mut Lines) {
        match &self.method {
            Method::Full { .. } => {
                text.key("method: full", "all weights; {lora: {r: 16}} takes far less memory");
            }
            Method::Lora(lora) => {
                text.key("method:", "which weights are trained; full trains all");
                text.key("  lora:", "small adapters beside the frozen weights");
                text.key(&format!("    r: {}", lora.r), "rank: how much adapters can learn, and take");
                text.key(&format!("    alpha: {}", lora.alpha), "scale: what adapters add times alpha / r");
                text.key("    targets: all-linear", "layers that get adapters");
            }
        }
        if self.base != BaseFormat::Auto {
            text.key(&format!("base: {}", self.base), "how frozen weights are stored");
        }
    }

    fn data_lines(&self, folder: &Path, text: &mut Lines) {
        text.bare("data:");
        let files: Vec<String> = self.data.iter().map(|path| quoted(&seen_from(folder, path))).collect();
        let what =
            self.found.clone().unwrap_or_else(|| "JSONL, CSV, Parquet, …: prompt/response, messages or text".into());
        let train = match files.as_slice() {
            [] => "data/train.jsonl".to_owned(),
            [file] => file.clone(),
            files => format!("[{}]", files.join(", ")),
        };
        text.key(&format!("  train: {train}"), &what);
        if !self.classes.is_empty() {
            let names: Vec<String> = self.classes.iter().map(|name| quoted(name)).collect();
            let classes =
                if let [count] = names.as_slice() { count.clone() } else { format!("[{}]", names.join(", ")) };
            text.key(&format!("  classes: {classes}"), "their number, or their names");
        }
        let eval = if self.holds_out { "  eval_split: 0.05" } else { "  # eval_split: 0.05" };
        text.key(eval, "share of the rows held out; or eval: FILE");
        text.key(&format!("  max_length: {}", self.max_length), "in tokens; memory grows with it");
        text.key("  overlong: truncate", "rows above it: error, truncate or skip");
    }

    fn optimizer_line(&self, text: &mut Lines) {
        let lr = if matches!(self.method, Method::Lora(_)) { LR_LORA } else { LR_FULL };
        let mut line = format!("optimizer: {{name: {}, lr: {lr}", self.optimizer);
        if self.state != StateStorage::Fp32 {
            let _ = write!(line, ", state: {}", self.state);
        }
        text.key(&(line + "}"), "update rule, highest rate, storage of its state");
    }
}

/// Adapters as they are usually taken.
pub fn lora(r: u64) -> Method {
    Method::Lora(Lora { r, alpha: 2.0 * r as f64, dropout: 0.0, targets: Targets::AllLinear, rslora: false })
}

fn task_help(task: &str) -> &'static str {
    match task {
        "pretrain" => "loss on every token",
        "reward" => "a score that ranks pairs of answers",
        "dpo" | "orpo" => "answers that are preferred, from pairs",
        "ranking" => "answers and the order of candidates",
        "classification" => "a class for each sequence",
        "seq2seq" => "responses from prompts, with an encoder",
        _ => "loss on the answers only",
    }
}

/// A path of the current folder, as it is written in a file in `folder`.
fn seen_from(folder: &Path, path: &str) -> String {
    let here = folder.as_os_str().is_empty() || folder == Path::new(".");
    if here || Path::new(path).is_absolute() {
        return path.to_owned();
    }
    std::path::absolute(path).map_or_else(|_| path.to_owned(), |path| path.display().to_string())
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn bare(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn remark(&mut self, text: &str) {
        self.bare(&format!("# {text}"));
    }

    fn key(&mut self, line: &str, comment: &str) {
        let _ = writeln!(self.0, "{line:<COMMENTS_AT$}# {comment}", line = format!("{line} "));
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use plimsoll_run::config::{ModelSource, Overrides, Resolved, Source, load};

    use super::*;

    fn loaded(text: &str) -> Resolved {
        load(Source::Embedded { name: "preset", text }, &Overrides::default()).unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    #[test]
    fn every_preset_is_a_valid_run() {
        for preset in Preset::value_variants() {
            let draft = Draft { model: "org/model: odd".to_owned(), ..Draft::of(*preset) };
            let text = draft.yaml(Path::new(""));
            let run = loaded(&text).run;
            assert_eq!(run.model, ModelSource::Name("org/model: odd".to_owned()));
            assert_eq!(matches!(run.method, Method::Lora(_)), *preset != Preset::Fastest);
        }
    }

    #[test]
    fn everything_that_is_chosen_is_in_the_file_and_explained() {
        let draft = Draft {
            chosen: Some("lowest".to_owned()),
            is_shape: true,
            device: Some("RTX 4090".to_owned()),
            task: "classification".to_owned(),
            classes: vec!["no".to_owned(), "yes".to_owned()],
            data: vec!["/data/a b.jsonl".to_owned(), "/data/c.csv".to_owned()],
            found: Some("text (text), 12 rows".to_owned()),
            holds_out: true,
            base: BaseFormat::Bf16,
            optimizer: "adafactor".to_owned(),
            state: StateStorage::Int8,
            ..Draft::of(Preset::Balanced)
        };
        let text = draft.yaml(Path::new("elsewhere"));
        let run = loaded(&text).run;
        assert_eq!(
            (run.task.as_str(), run.data.train.len(), run.optimizer.name.as_str()),
            ("classification", 2, "adafactor")
        );
        assert_eq!((run.optimizer.state, run.data.eval_split), (StateStorage::Int8, Some(0.05)));
        assert_eq!((run.data.classes.count(), run.base), (Some(2), Some(BaseFormat::Bf16)));
        for line in text.lines().filter(|line| !line.is_empty() && *line != "data:") {
            assert!(line.contains('#'), "{line}");
        }
    }

    #[test]
    fn paths_are_seen_from_the_files_folder() {
        for folder in ["", "."] {
            assert_eq!(seen_from(Path::new(folder), "data/a.jsonl"), "data/a.jsonl");
        }
        assert_eq!(seen_from(Path::new("runs"), "/data/a.jsonl"), "/data/a.jsonl");
        assert!(Path::new(&seen_from(Path::new("runs"), "a.jsonl")).is_absolute());
    }
}
