//! The command line.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use plimsoll_plan::Backing;

use crate::config::{Flag, Overrides, Resolved, Source, load, load_over};
use crate::error::Failure;
use crate::quickstart;

/// Trains language models inside a memory budget.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, max_term_width = 100, subcommand_required = true)]
#[command(after_help = "Example: plimsoll plan run.yaml --device 'RTX 4090' --gpu 20GiB")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Plan, then train; without a file, the built-in quickstart
    #[command(after_help = "Example: plimsoll train run.yaml --gpu 12GiB --set optimizer.lr=1e-4")]
    Train(TrainArgs),
    /// Plan only, on any machine
    #[command(after_help = "Example: plimsoll plan run.yaml --device 'RTX 3060' --json")]
    Plan(PlanArgs),
    /// A few steps on synthetic tokens: measured against planned
    #[command(after_help = "Example: plimsoll bench run.yaml --steps 8 --json")]
    Bench(BenchArgs),
    /// Write a commented run file to start from
    #[command(after_help = "Example: plimsoll init --preset low-memory --model qwen3-0.6b run.yaml")]
    Init(InitArgs),
    /// Work with tokenizers
    #[command(subcommand)]
    Tokenizer(TokenizerCommand),
}

#[derive(Debug, Subcommand)]
pub enum TokenizerCommand {
    /// Train a vocabulary on your own data and write it as a Hugging Face tokenizer
    #[command(
        after_help = "Example: plimsoll tokenizer train --data 'data/*.jsonl' --out tokenizer --vocab-size 32000"
    )]
    Train(TokenizerTrainArgs),
}

#[derive(Debug, Args)]
pub struct TokenizerTrainArgs {
    /// A file, a folder or a pattern of files; may be repeated
    #[arg(long, value_name = "FILES", required = true)]
    pub data: Vec<String>,
    /// Where to write tokenizer.json and tokenizer_config.json
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Tokens, special ones included
    #[arg(long, value_name = "N", default_value_t = 32_000)]
    pub vocab_size: usize,
    /// How words are cut
    #[arg(long, value_enum, default_value_t = Vocabulary::Bpe)]
    pub kind: Vocabulary,
    /// A token that is never split; may be repeated. The end of sequence is always one
    #[arg(long, value_name = "TOKEN")]
    pub special: Vec<String>,
    /// A built-in chat template to write with it, as chatml; its markers become special tokens
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
    /// Read about so much text, spread over the rows: 2GiB
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<String>,
    /// Overwrite a tokenizer that is there
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Vocabulary {
    /// Byte pairs, as GPT-2's
    Bpe,
    /// Pieces by likelihood, as T5's
    Unigram,
}

#[derive(Debug, Args)]
pub struct TrainArgs {
    /// The run; left out: the quickstart
    #[arg(value_name = "RUN.yaml")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub common: CommonArgs,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The run; left out: the quickstart
    #[arg(value_name = "RUN.yaml")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub common: CommonArgs,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The run
    #[arg(value_name = "RUN.yaml")]
    pub file: PathBuf,
    /// Time every operator alone and show where the time goes
    #[arg(long)]
    pub profile: bool,
    #[command(flatten)]
    pub common: CommonArgs,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// What the file is tuned for
    #[arg(long, value_enum, default_value_t = Preset::Balanced)]
    pub preset: Preset,
    /// A preset, a Hugging Face folder or a hub id
    #[arg(long, default_value = "qwen3-0.6b")]
    pub model: String,
    /// Overwrite the file if it exists
    #[arg(long)]
    pub force: bool,
    /// Where to write
    #[arg(value_name = "FILE", default_value = "run.yaml")]
    pub file: PathBuf,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    LowMemory,
    Balanced,
    Fastest,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArgs {
    /// Only errors, warnings and results
    #[arg(long)]
    pub quiet: bool,
    /// Results as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// What `train`, `plan` and `bench` share. Flags that mirror a key are checked as that key is.
#[derive(Debug, Args)]
pub struct CommonArgs {
    /// cpu, cuda:0 or a card by name; default: the first GPU that works, else the CPU
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// GPU memory budget: 12GiB, 80%, auto
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub gpu: Option<String>,
    /// Host memory budget: 16GiB, 80%, auto
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub host: Option<String>,
    /// fastest or lowest
    #[arg(long, value_name = "GOAL")]
    pub goal: Option<String>,
    /// Set any key of the run; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The run folder; default: runs/NAME
    #[arg(long, value_name = "DIR")]
    pub out: Option<String>,
    /// Train for so many updates
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Seed of everything random
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// compiled or eager
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// Measure the GPU again instead of taking the figures of its first use
    #[arg(long)]
    pub remeasure: bool,
    /// Poison freed memory and re-check the layout while running
    #[arg(long)]
    pub paranoid: bool,
    /// Print where each value of the run came from
    #[arg(long)]
    pub origins: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

impl Command {
    pub fn output(&self) -> OutputArgs {
        match self {
            Self::Train(args) => args.common.output,
            Self::Plan(args) => args.common.output,
            Self::Bench(args) => args.common.output,
            Self::Init(args) => args.output,
            Self::Tokenizer(TokenizerCommand::Train(args)) => args.output,
        }
    }
}

impl CommonArgs {
    /// Reads the run from `file`, or the quickstart, under the environment and these flags.
    pub fn resolve(&self, file: Option<&Path>) -> Result<Resolved, Failure> {
        let source = match file {
            Some(path) => Source::File(path),
            None => quickstart::source(),
        };
        load(source, &self.overrides())
    }

    /// The run that `resolve` gave, now that it is known what it runs on: the quickstart has a budget for a GPU.
    pub fn resolve_on(&self, backing: Backing, resolved: Resolved, file: Option<&Path>) -> Result<Resolved, Failure> {
        match (file, backing) {
            (None, Backing::Gpu) => load_over(quickstart::source(), Some(quickstart::on_gpu()), &self.overrides()),
            _ => Ok(resolved),
        }
    }

    fn overrides(&self) -> Overrides {
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        let flags = [
            ("--device", "device", self.device.clone()),
            ("--gpu", "memory.gpu", self.gpu.clone()),
            ("--host", "memory.host", self.host.clone()),
            ("--goal", "memory.goal", self.goal.clone()),
            ("--out", "out", self.out.clone()),
            ("--steps", "schedule.steps", number(self.steps)),
            ("--seed", "seed", number(self.seed)),
            ("--mode", "mode", self.mode.clone()),
        ];
        let flag = |(name, path, value): (_, _, Option<String>)| Some(Flag { name, path, value: value? });
        Overrides {
            // Names and values that are not UTF-8 cannot be keys of ours.
            environment: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            set: self.set.clone(),
            flags: flags.into_iter().filter_map(flag).collect(),
        }
    }
}
