//! What `plimsoll init` takes.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use plimsoll_run::config::Overrides;

use super::{OutputArgs, overrides};

#[derive(Debug, Args)]
pub struct InitArgs {
    /// What the run file is tuned for [default: balanced]
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// Model to train: a preset, a Hugging Face folder or a hub id [default: qwen3-0.6b]
    #[arg(long)]
    pub model: Option<String>,
    /// Rows to train on: a file, a folder or a pattern; may be repeated
    #[arg(long, value_name = "FILES")]
    pub data: Vec<String>,
    /// What is learnt [default: what the data suggests, else sft]
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,
    /// Which weights are trained: full, lora, or lora-RANK such as lora-8 [default: the preset's]
    #[arg(long, value_name = "METHOD", value_parser = init_method)]
    pub method: Option<InitMethod>,
    /// Longest sequence in tokens [default: the preset's]
    #[arg(long, value_name = "TOKENS")]
    pub max_length: Option<u64>,
    /// Sequences of an update [default: the preset's]
    #[arg(long, value_name = "N")]
    pub sequences: Option<u64>,
    /// GPU memory budget: a size such as 12GiB, a percentage of the available memory, or auto
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub gpu: Option<String>,
    /// Host memory budget: a size such as 16GiB, a percentage of the available memory, or auto
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub host: Option<String>,
    /// Device: cpu, cuda:0 or the name of a GPU to plan for
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Ask nothing: take the defaults for what no flag says
    #[arg(long)]
    pub yes: bool,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
    /// The file to write
    #[arg(value_name = "FILE", default_value = "run.yaml")]
    pub file: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What `init --method` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitMethod {
    Full,
    /// Adapters, of this rank where one is given.
    Lora(Option<u64>),
}

fn init_method(text: &str) -> Result<InitMethod, String> {
    let rank = |text: &str| text.parse().ok().filter(|rank| *rank > 0);
    let method = match text {
        "full" => Some(InitMethod::Full),
        "lora" => Some(InitMethod::Lora(None)),
        _ => text.strip_prefix("lora-").and_then(rank).map(|rank| InitMethod::Lora(Some(rank))),
    };
    method.ok_or_else(|| "expected full, lora or lora-RANK such as lora-8".to_owned())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    LowMemory,
    Balanced,
    Fastest,
}

impl InitArgs {
    /// Whether anything says what the file is to hold, so that nothing is asked.
    pub fn is_answered(&self) -> bool {
        let said = [&self.model, &self.task, &self.gpu, &self.host, &self.device].into_iter().any(Option::is_some);
        let counted = self.max_length.is_some() || self.sequences.is_some();
        self.yes || said || counted || self.preset.is_some() || self.method.is_some() || !self.data.is_empty()
    }

    /// What stands above the file: the environment.
    pub fn overrides() -> Overrides {
        overrides(&[], [])
    }
}
