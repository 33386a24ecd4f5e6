//! What a run does as it was told, though it was hardly meant so.

use std::fmt;

use plimsoll_data::{Amount, Dataset};
use plimsoll_graph::WeightFormat;
use plimsoll_train::{LearningRate, Spec};

use crate::config::{Length, OriginRow, Resolved, RunConfig, key_at};
use crate::units::{Things, counted};

#[derive(Clone, Debug, PartialEq)]
pub enum Warning {
    /// Sequences may have more positions than the model was made for.
    Positions { max_length: u64, positions: u64 },
    /// Four bits of each weight are few where there are few weights.
    SmallBase { parameters: u64 },
    /// The learning rate never reaches its peak.
    WarmUp { updates: u64, warmup: u64 },
    /// A key that needs evaluation data, where there is none.
    NoEvaluationData { key: &'static str },
    /// There are too few rows for the share to hold out one.
    NothingHeldOut { share: f64 },
    /// A key of another task or optimizer than the run's.
    Idle { key: String, of: &'static str, runs: String },
    /// An update needs more sequences than there are.
    SmallDataset { batch: u64, sequences: u64 },
    /// The epochs asked for are one update.
    OneUpdate { sequences: u64 },
}

/// What can be said without data.
pub fn of_model(run: &RunConfig, spec: &Spec) -> Vec<Warning> {
    let (max_length, positions) = (run.data.max_length, spec.model.config.max_position as u64);
    let long = (max_length > positions).then_some(Warning::Positions { max_length, positions });
    let parameters = spec.model.config.parameter_count() as u64;
    let small = spec.recipe.base == Some(WeightFormat::Nf4) && parameters < NF4_PARAMETERS_MIN;
    long.into_iter().chain(small.then_some(Warning::SmallBase { parameters })).collect()
}

/// Adapters beside nf4 were shown to reach what they reach beside sixteen bits from seven billion parameters on (Dettmers
/// and others, QLoRA); the fewer there are, the more each one counts.
const NF4_PARAMETERS_MIN: u64 = 1_000_000_000;

/// Sections and keys that only one task looks at.
const OF_TASKS: [(&str, &str); 6] = [
    ("reward.", "task: reward"),
    ("ranking.", "task: ranking"),
    ("dpo.", "task: dpo"),
    ("orpo.", "task: orpo"),
    ("data.classes", "task: classification"),
    ("eval.bleu_rows", "task: seq2seq"),
];
/// The same of optimizers.
const OF_OPTIMIZERS: [(&str, &str); 2] =
    [("optimizer.muon.", "optimizer: muon"), ("optimizer.adafactor.", "optimizer: adafactor")];

/// Settings of other tasks and optimizers than the run's, where they are not what they would be anyway.
pub fn of_settings(resolved: &Resolved) -> Vec<Warning> {
    let run = &resolved.run;
    let is_run_s = |of: &str| match of.split_once(": ") {
        Some(("task", task)) => task == run.task,
        Some((_, name)) => run.optimizer.has(name),
        None => true,
    };
    let idle = |row: OriginRow| {
        let (_, of) = OF_TASKS.into_iter().chain(OF_OPTIMIZERS).find(|(key, _)| row.path.starts_with(key))?;
        let default = key_at(&row.path).and_then(|key| key.default);
        let is_meant = is_run_s(of) || default.is_some_and(|default| same(&row.value, default));
        let runs = if of.starts_with("task") { &run.task } else { &run.optimizer.name };
        (!is_meant).then(|| Warning::Idle { key: row.path, of, runs: runs.clone() })
    };
    resolved.origins().into_iter().filter_map(idle).collect()
}

/// `0` and `0.0` are one number.
fn same(value: &str, default: &str) -> bool {
    let numbers = (value.parse::<f64>(), default.parse::<f64>());
    value == default || matches!(numbers, (Ok(value), Ok(default)) if value == default)
}

/// What is left to be said of a run of so many updates.
pub fn of_run(
    run: &RunConfig,
    amount: Amount,
    rate: &LearningRate,
    train: &Dataset,
    eval: Option<&Dataset>,
) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if rate.warmup > rate.total {
        warnings.push(Warning::WarmUp { updates: rate.total, warmup: rate.warmup });
    }
    if eval.is_none() {
        let keys = [("eval.every", run.eval.every.is_some()), ("eval.samples", run.eval.samples.is_some())];
        let given = keys.into_iter().filter(|(_, is_given)| *is_given);
        warnings.extend(match run.data.eval_split {
            Some(share) => vec![Warning::NothingHeldOut { share }],
            None => given.map(|(key, _)| Warning::NoEvaluationData { key }).collect(),
        });
    }
    let by_epochs = matches!(run.schedule.length(), Length::Epochs(_));
    match (amount, train.sequences()) {
        (Amount::Sequences(batch), Some(sequences)) if sequences < batch => {
            warnings.push(Warning::SmallDataset { batch, sequences });
        }
        (_, Some(sequences)) if by_epochs && rate.total == 1 => warnings.push(Warning::OneUpdate { sequences }),
        _ => {}
    }
    warnings
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Positions { max_length, positions } => write!(
                f,
                "`data.max_length` is {max_length}, but the model was made for sequences of at most {positions} tokens"
            ),
            Self::SmallBase { parameters } => write!(
                f,
                "`base` is nf4, and the model has {} million parameters: small models lose more by four bits than large \
                 ones; with `base: int8`, weights are off by a tenth as much",
                parameters / 1_000_000
            ),
            Self::WarmUp { updates, warmup } => write!(
                f,
                "`schedule.warmup` takes {warmup} updates, but the run has {updates}: the learning rate never reaches \
                 `optimizer.lr`"
            ),
            Self::NoEvaluationData { key } => {
                write!(f, "`{key}` has no effect without evaluation data; set `data.eval` or `data.eval_split`")
            }
            Self::NothingHeldOut { share } => write!(
                f,
                "`data.eval_split` is {share}, which of so few rows holds out none: there is no evaluation data"
            ),
            Self::Idle { key, of, runs } => {
                let what = of.split(':').next().unwrap_or_default();
                write!(f, "`{key}` has no effect: it is a setting of `{of}`, and the {what} is {runs}")
            }
            Self::SmallDataset { batch, sequences } => write!(
                f,
                "`batch.sequences` is {batch}, but the training data has {}: every update has some of them more than \
                 once",
                counted(*sequences, Things::Sequences)
            ),
            Self::OneUpdate { sequences } => write!(
                f,
                "the run has one update, because all {sequences} sequences fit into it; raise `schedule.epochs` or lower \
                 the batch"
            ),
        }
    }
}
