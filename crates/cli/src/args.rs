//! The command line.

mod init;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use plimsoll_run::config::{Flag, Overrides, Resolved, load_run};
use plimsoll_run::{Failure, Options};

pub use init::{InitArgs, InitMethod, Preset};

/// Trains language models inside a memory budget.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, max_term_width = 100, subcommand_required = true)]
#[command(after_help = "Example: plimsoll plan run.yaml --device 'RTX 4090' --gpu 20GiB")]
pub struct Cli {
    /// Language of messages: en or zh [default: PLIMSOLL_LANG, else the language of the locale]
    #[arg(long, global = true, value_name = "LANGUAGE", value_parser = ["en", "zh"], hide_possible_values = true, display_order = 900)]
    pub lang: Option<String>,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Plan a run, then train it; without a file, the built-in quickstart
    #[command(after_help = "Example: plimsoll train run.yaml --gpu 12GiB --set optimizer.lr=1e-4")]
    Train(TrainArgs),
    /// Plan a run without training it, for this machine or for any GPU in the table
    #[command(after_help = "Example: plimsoll plan run.yaml --device 'RTX 3060' --json")]
    Plan(PlanArgs),
    /// Time a few updates on synthetic tokens and compare them with the plan
    #[command(after_help = "Example: plimsoll bench run.yaml --steps 8 --json")]
    Bench(BenchArgs),
    /// Continue prompts with a model, or talk with it
    #[command(after_help = "Example: plimsoll generate runs/chat --chat --temperature 0.7")]
    Generate(GenerateArgs),
    /// Compute the loss and the metrics of a model over a dataset
    #[command(after_help = "Example: plimsoll eval runs/chat --data held-out.jsonl --json")]
    Eval(EvalArgs),
    /// Fold an adapter into its base model and write that as a Hugging Face folder
    #[command(after_help = "Example: plimsoll merge runs/chat --out merged")]
    Merge(MergeArgs),
    /// Write a trained model for llama.cpp, or a run's plan as a configuration of another trainer
    #[command(after_help = "Example: plimsoll export runs/chat --to gguf --type q8_0 --out chat.gguf")]
    Export(ExportArgs),
    /// Ask a run to save and stop after the update it is in
    #[command(after_help = "Example: plimsoll stop runs/run")]
    Stop(StopArgs),
    /// List runs: step, loss, time left
    #[command(after_help = "Example: plimsoll status --json")]
    Status(StatusArgs),
    /// This machine: GPUs, memory, disks, who uses them, what is wrong and what to do
    #[command(after_help = "Example: plimsoll doctor --seconds 10")]
    Doctor(DoctorArgs),
    /// Print the log of a run
    #[command(after_help = "Example: plimsoll logs runs/reward -f")]
    Logs(LogsArgs),
    /// Show runs in a browser on this machine, plan new ones there, start, stop and resume them
    #[command(after_help = "Example: plimsoll dashboard runs --port 8080 --from ~/models --from ~/data")]
    Dashboard(DashboardArgs),
    /// Watch a run in the terminal; leaving never stops it
    #[command(after_help = "Example: plimsoll watch runs/reward")]
    Watch(WatchArgs),
    /// List the keys of a run file: allowed values, defaults and help
    #[command(after_help = "Example: plimsoll keys optimizer")]
    Keys(KeysArgs),
    /// Write a commented run file to start from; on a terminal and without flags, ask what it needs
    #[command(after_help = "Example: plimsoll init --model models/Qwen2.5-0.5B --data data/train.jsonl --gpu 12GiB")]
    Init(InitArgs),
    /// Print a script that completes commands and flags in a shell
    #[command(after_help = "Example: plimsoll completions bash > ~/.local/share/bash-completion/completions/plimsoll")]
    Completions(CompletionsArgs),
    /// Print every command with its flags as a page in Markdown
    #[command(hide = true)]
    Commands,
    /// Train tokenizers
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
    /// Text to train on: a file, a folder or a pattern; may be repeated
    #[arg(long, value_name = "FILES", required = true)]
    pub data: Vec<String>,
    /// Where to write tokenizer.json and tokenizer_config.json
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Size of the vocabulary, special tokens included
    #[arg(long, value_name = "N", default_value_t = 32_000)]
    pub vocab_size: usize,
    /// Algorithm of the vocabulary
    #[arg(long, value_enum, default_value_t = Vocabulary::Bpe)]
    pub kind: Vocabulary,
    /// Add a token that is never split; may be repeated. The end-of-sequence token is always added
    #[arg(long, value_name = "TOKEN")]
    pub special: Vec<String>,
    /// Built-in chat template to include, such as chatml; its markers become special tokens
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
    /// Read at most about this much text, sampled evenly from the rows, such as 2GiB
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<String>,
    /// Overwrite an existing tokenizer
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Vocabulary {
    /// Byte pair encoding, as in GPT-2
    Bpe,
    /// Unigram language model, as in T5
    Unigram,
}

#[derive(Debug, Args)]
pub struct TrainArgs {
    /// The run file; without one, and with neither a model nor data set, the built-in quickstart
    #[arg(value_name = "RUN.yaml")]
    pub file: Option<PathBuf>,
    /// Go on from the newest checkpoint, also under a changed configuration; fails if there is none
    #[arg(long, conflicts_with = "fresh")]
    pub resume: bool,
    /// Never go on: refuse a folder that holds a run
    #[arg(long)]
    pub fresh: bool,
    /// Show the run in a browser on this machine while it trains
    #[arg(long)]
    pub dashboard: bool,
    #[command(flatten)]
    pub common: CommonArgs,
}

#[derive(Debug, Args)]
pub struct StopArgs {
    /// The run folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Return at once instead of waiting until the run has saved
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// A run folder, or a folder of runs [default: runs]
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The run file; without one, and with neither a model nor data set, the built-in quickstart
    #[arg(value_name = "RUN.yaml")]
    pub file: Option<PathBuf>,
    /// Draw the plan, addresses over time, as a page that works offline
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Draw the plan for a document
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// The same in pixels, for documents that take no SVG
    #[arg(long, value_name = "FILE")]
    pub png: Option<PathBuf>,
    /// Draw another plan beside it: that of another run file, or of the same one with the goal `fastest` or `lowest`
    #[arg(long, value_name = "RUN.yaml|GOAL", requires = "html")]
    pub beside: Option<PathBuf>,
    /// Compare methods instead: full training with states in less memory, frozen layers, LoRA at several ranks
    #[arg(long, value_name = "WHICH", value_parser = ["methods"], conflicts_with_all = ["html", "svg"])]
    pub alternatives: Option<String>,
    /// Compare the plan with what the same run takes elsewhere: `pytorch` is Hugging Face transformers with PEFT
    #[arg(long, value_name = "WHAT", value_parser = ["pytorch"], conflicts_with = "alternatives")]
    pub compare: Option<String>,
    #[command(flatten)]
    pub common: CommonArgs,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The run file; without one, and with neither a model nor data set, the built-in quickstart
    #[arg(value_name = "RUN.yaml")]
    pub file: Option<PathBuf>,
    /// Time every operator separately and show where the time goes
    #[arg(long)]
    pub profile: bool,
    /// Time a text instead: a prompt that fills data.max_length up, and N greedy tokens
    #[arg(long, value_name = "N", conflicts_with = "steps")]
    pub generate: Option<usize>,
    #[command(flatten)]
    pub common: CommonArgs,
}

#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A Hugging Face folder, a run folder, a checkpoint, or the folder of an adapter
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// LoRA adapter to use on top of the model, as PEFT or `train` saves it
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Text to continue; standard input if neither this nor another source of prompts is given
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Prompts, one on each line: a JSON string, {"prompt": …} or {"messages": …}
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    pub prompt_file: Option<PathBuf>,
    /// Read prompts from the terminal, one on each line
    #[arg(short, long, conflicts_with_all = ["prompt", "prompt_file"])]
    pub interactive: bool,
    /// Put prompts through the tokenizer's chat template; without a prompt, hold a conversation
    #[arg(long)]
    pub chat: bool,
    /// Chat template instead of the tokenizer's own: a name such as chatml, or a .jinja file
    #[arg(long, value_name = "NAME")]
    pub template: Option<String>,
    /// Most new tokens of an answer [default: 256]
    #[arg(long, value_name = "N")]
    pub max_new: Option<usize>,
    /// Tokens that prompt and answer may have together [default: as many as are needed; up to 4096 in a conversation]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// 0 always takes the likeliest token [default: as the model's generation_config.json says, else 0]
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub temperature: Option<f32>,
    /// Choose among the likeliest tokens that together have this probability
    #[arg(long, value_name = "P", allow_hyphen_values = true)]
    pub top_p: Option<f32>,
    /// Choose among this many of the likeliest tokens; 0 for all
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Above 1, tokens that occurred already become less likely
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    pub repetition_penalty: Option<f32>,
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 42)]
    pub seed: u64,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub struct EvalArgs {
    /// A run file, a run folder, a Hugging Face folder, a checkpoint, or the folder of an adapter
    #[arg(value_name = "RUN.yaml|MODEL")]
    pub model: String,
    /// LoRA adapter to use on top of the model
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Rows to evaluate on [default: the run's data.eval or data.eval_split]
    #[arg(long, value_name = "FILE")]
    pub data: Option<String>,
    /// What the model was trained for [default: the run's task, else sft]
    #[arg(long, value_name = "TASK")]
    pub task: Option<String>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// For gguf a Hugging Face folder, a run folder, a checkpoint or an adapter; for the others a run file or a run folder
    #[arg(value_name = "DIR|RUN.yaml")]
    pub source: String,
    /// What to write: a model for llama.cpp, or a configuration of DeepSpeed or accelerate with the plan's figures
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub to: ExportFormat,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// How gguf stores matrices [default: as the model's files do]
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    pub stored: Option<StoredType>,
    /// GPUs that share an update, for deepspeed and accelerate [default: 1]
    #[arg(long, value_name = "N")]
    pub gpus: Option<NonZeroUsize>,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    Gguf,
    Deepspeed,
    Accelerate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoredType {
    F32,
    F16,
    Bf16,
    /// Eight bits a number, and a scale for every 32
    #[value(name = "q8_0")]
    Q8_0,
}

/// Where a model runs that is not trained, and in how much memory.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// Device: cpu or cuda:0 [default: the first usable GPU, else the CPU]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// GPU memory budget: a size such as 12GiB, a percentage of the available memory, or auto
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub gpu: Option<String>,
    /// Host memory budget: a size such as 16GiB, a percentage of the available memory, or auto
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub host: Option<String>,
    /// How the frozen base is stored: bf16, fp8, int8, nf4 or auto [default: as the model's folder has it, or as the adapter
    /// was trained on it]
    #[arg(long, value_name = "FORMAT")]
    pub base: Option<String>,
    /// Set any key of a run file that applies, such as precision or data.max_length; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Poison freed memory and check the layout while running
    #[arg(long)]
    pub paranoid: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct MergeArgs {
    /// A PEFT folder with LoRA adapters, or the folder of a run that trained them
    #[arg(value_name = "ADAPTER")]
    pub adapter: PathBuf,
    /// The folder to write; it must be new or empty
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The base model, where it is not found under the name that the adapter has for it
    #[arg(long, value_name = "MODEL")]
    pub base: Option<String>,
    /// Begin another weight file beyond this size
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    pub shard: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// For how long to watch
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = watching_seconds)]
    pub seconds: f64,
    /// Write what was seen to a file, to be looked at elsewhere
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Look at what --record wrote instead of at this machine
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Ask runs of ours that hang and hold GPU memory to stop, without a question
    #[arg(long, conflicts_with = "replay")]
    pub yes: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The run folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Go on until the run ends
    #[arg(short, long)]
    pub follow: bool,
    /// Begin with the last N lines [default: all]
    #[arg(short = 'n', long, value_name = "N")]
    pub lines: Option<usize>,
}

#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// The folder of the runs
    #[arg(value_name = "DIR", default_value = "runs")]
    pub folder: PathBuf,
    /// Port on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,
    /// Folder with models, data and run files to start from; may be repeated
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub from: Vec<PathBuf>,
    /// The process that it is shown beside: it ends with it, and stays out of its way
    #[arg(long, value_name = "PID", hide = true)]
    pub beside: Option<u32>,
}

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// The run folder [default: the run under runs/ that wrote last]
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

const WATCHING_SECONDS: std::ops::RangeInclusive<f64> = 0.25..=600.0;

fn watching_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    let (least, most) = (WATCHING_SECONDS.start(), WATCHING_SECONDS.end());
    if WATCHING_SECONDS.contains(&seconds) { Ok(seconds) } else { Err(format!("expected {least} to {most}")) }
}

#[derive(Debug, Args)]
pub struct KeysArgs {
    /// Only this key and those below it, such as optimizer or data.train
    #[arg(value_name = "PATH")]
    pub path: Option<String>,
    /// Print every key as a page in Markdown
    #[arg(long, conflicts_with_all = ["path", "json"])]
    pub markdown: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct OutputArgs {
    /// Print only errors, warnings and results
    #[arg(long)]
    pub quiet: bool,
    /// Print results as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// What `train`, `plan` and `bench` share. Flags that mirror a key are checked as that key is.
#[derive(Clone, Debug, Args)]
pub struct CommonArgs {
    /// Device: cpu, cuda:0 or, for `plan`, the name of a GPU [default: the first usable GPU, else the CPU]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// GPU memory budget: a size such as 12GiB, a percentage of the available memory, or auto
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub gpu: Option<String>,
    /// Host memory budget: a size such as 16GiB, a percentage of the available memory, or auto
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub host: Option<String>,
    /// What to optimise the plan for: fastest or lowest
    #[arg(long, value_name = "GOAL")]
    pub goal: Option<String>,
    /// How frozen weights are stored: bf16, fp8, int8, nf4 or auto
    #[arg(long, value_name = "FORMAT")]
    pub base: Option<String>,
    /// Set any key of the run file; may be repeated (`plimsoll keys` lists them)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The run folder [default: runs/NAME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<String>,
    /// Number of updates
    #[arg(long, value_name = "N")]
    pub steps: Option<u64>,
    /// Seed of all random numbers
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Execution mode: compiled or eager
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// Measure the GPU again instead of using the saved measurement
    #[arg(long)]
    pub remeasure: bool,
    /// Poison freed memory and check the layout while running
    #[arg(long)]
    pub paranoid: bool,
    /// Print where each value of the configuration comes from
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
            Self::Generate(args) => args.device.output,
            Self::Eval(args) => args.device.output,
            Self::Export(args) => args.device.output,
            Self::Stop(args) => args.output,
            Self::Status(args) => args.output,
            Self::Merge(args) => args.output,
            Self::Keys(args) => args.output,
            Self::Doctor(args) => args.output,
            Self::Logs(_) | Self::Watch(_) | Self::Dashboard(_) => OutputArgs { quiet: false, json: false },
            Self::Init(args) => args.output,
            Self::Completions(_) | Self::Commands => OutputArgs { quiet: false, json: false },
            Self::Tokenizer(TokenizerCommand::Train(args)) => args.output,
        }
    }
}

impl DeviceArgs {
    /// As the keys they mirror, with the chat template where one is chosen.
    pub fn overrides(&self, template: &Option<String>) -> Overrides {
        let flags = [
            ("--device", "device", self.device.clone()),
            ("--gpu", "memory.gpu", self.gpu.clone()),
            ("--host", "memory.host", self.host.clone()),
            ("--base", "base", self.base.clone()),
            ("--template", "data.template", template.clone()),
        ];
        overrides(&self.set, flags)
    }
}

/// The environment, then `--set`, then those flags that were given.
fn overrides(
    set: &[String],
    flags: impl IntoIterator<Item = (&'static str, &'static str, Option<String>)>,
) -> Overrides {
    let flag = |(name, path, value): (_, _, Option<String>)| Some(Flag { name, path, value: value? });
    Overrides {
        // Names and values that are not UTF-8 cannot be keys of ours.
        environment: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect(),
        set: set.to_vec(),
        flags: flags.into_iter().filter_map(flag).collect(),
    }
}

impl CommonArgs {
    /// Reads the run from `file`, or what a command without one means, overridden by the environment and these flags.
    pub fn resolve(&self, file: Option<&Path>) -> Result<Resolved, Failure> {
        load_run(file, &self.overrides())
    }

    pub fn options<'a>(&self, file: Option<&'a Path>) -> Options<'a> {
        Options { run_file: file, remeasure: self.remeasure, paranoid: self.paranoid, ..Options::default() }
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
            ("--base", "base", self.base.clone()),
        ];
        overrides(&self.set, flags)
    }
}
