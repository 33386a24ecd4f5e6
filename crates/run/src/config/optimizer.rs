//! `optimizer` and `schedule`.

use plimsoll_graph::ops::{self, AdafactorSettings, MomentumRamp, MuonSettings};
use plimsoll_graph::{self as graph, OptimizerSettings};
use plimsoll_models::GroupDescription;

use super::kind::{Kind, Range};
use super::reader::Reader;
use super::schema::{
    Form, OPTIMIZER_NAMES, boolean, count, list, number, numbers, optional, span, texts, word, word_of,
};
use super::section::{List, section};
use super::size::Span;
use super::words::{MuonScale, ScheduleName, StateStorage};
use crate::failure::Failure;

section! {
    pub struct OptimizerConfig {
        /// The update rule.
        name: String = word_of(&OPTIMIZER_NAMES), default "adamw", also ["type"];
        /// The highest learning rate.
        lr: f64 = number(Range::ABOVE_ZERO), default "2e-5", also ["learning_rate", "max_lr"];
        /// Weight decay, decoupled from the gradient; with SGD it is added to it, as PyTorch does.
        weight_decay: f64 = number(Range::FROM_ZERO), default "0.01";
        /// Whether norms and biases decay too.
        decay_norms: bool = boolean(), default "false";
        /// Decay rates of the first and second moment: [0.9, 0.999] if unset, for Lion [0.9, 0.99].
        betas: Option<[f64; 2]> = numbers(2, Range::BELOW_ONE),
            also ["adam_beta1", "adam_beta2", "beta1", "beta2"];
        /// Added to AdamW's denominator, 1e-8 if unset, or to Adafactor's squares, 1e-30 if unset.
        eps: Option<f64> = number(Range::ABOVE_ZERO), also ["adam_epsilon"];
        /// Momentum of SGD, 0 if unset, or of Muon, 0.95 if unset.
        momentum: Option<f64> = number(Range::BELOW_ONE);
        /// How the optimizer's state is stored.
        state: StateStorage = word::<StateStorage>(), default "fp32";
        /// Settings of Muon alone.
        muon: Option<MuonConfig> = optional::<MuonConfig>();
        /// Settings of Adafactor alone, as transformers names them.
        adafactor: Option<AdafactorConfig> = optional::<AdafactorConfig>();
        /// Parameters with settings of their own: the first group whose `match` fits has them, and what it does not set is
        /// as above.
        groups: List<GroupConfig> = list::<GroupConfig>(), also ["lr_groups", "embedding_lr"];
    }
    then Self::checked;
}

section! {
    /// Parameters with settings of their own.
    pub struct GroupConfig {
        /// Hugging Face names; `*` matches any characters.
        patterns as "match": Vec<String> = texts();
        /// The update rule.
        name: Option<String> = word_of(&OPTIMIZER_NAMES), also ["type"];
        /// The highest learning rate.
        lr: Option<f64> = number(Range::ABOVE_ZERO), also ["learning_rate"];
        /// Weight decay.
        weight_decay: Option<f64> = number(Range::FROM_ZERO);
        /// Decay rates of the first and second moment.
        betas: Option<[f64; 2]> = numbers(2, Range::BELOW_ONE);
        /// Added to the denominator.
        eps: Option<f64> = number(Range::ABOVE_ZERO);
        /// Momentum of SGD or Muon.
        momentum: Option<f64> = number(Range::BELOW_ONE);
    }
}

section! {
    pub struct MuonConfig {
        /// Whether the step looks ahead along the momentum.
        nesterov: bool = boolean(), default "true";
        /// How steps grow with a matrix: `original` by its shape, `match-adamw` to AdamW's size.
        scale: MuonScale = word::<MuonScale>(), default "original";
        /// Momentum of the first update, from which it grows evenly to `optimizer.momentum`.
        momentum_start: Option<f64> = number(Range::BELOW_ONE);
        /// Updates over which the momentum grows.
        momentum_updates: u64 = count(), default "300";
    }
}

section! {
    pub struct AdafactorConfig {
        /// The rate follows from the update alone, whatever `optimizer.lr` is.
        relative_step: bool = boolean(), default "false";
        /// That rate begins near zero.
        warmup_init: bool = boolean(), default "false";
        /// Rates are multiples of each matrix's size.
        scale_parameter: bool = boolean(), default "false";
        /// Updates are clipped to this root mean square.
        clip_threshold: f64 = number(Range::ABOVE_ZERO), default "1.0";
        /// Exponent by which the mean of squares grows longer.
        decay_rate: f64 = Form::Leaf(Kind::Number(Range::new(-1.0, 0.0))), default "-0.8";
        /// Decay rate of a mean of steps; none is kept if unset.
        beta1: Option<f64> = number(Range::BELOW_ONE);
    }
}

impl MuonConfig {
    fn settings(&self) -> MuonSettings {
        MuonSettings {
            nesterov: self.nesterov,
            scale: match self.scale {
                MuonScale::Original => ops::MuonScale::Original,
                MuonScale::MatchAdamW => ops::MuonScale::MatchRmsAdamW,
            },
            ramp: self.momentum_start.map(|from| MomentumRamp { from, updates: self.momentum_updates }),
        }
    }
}

/// Adafactor with the run's learning rate, as Hugging Face's Trainer has it.
const GIVEN_RATE: AdafactorSettings = AdafactorSettings {
    relative_step: false,
    warmup_init: false,
    scale_parameter: false,
    least_scale: 1e-3,
    clip_threshold: 1.0,
    decay_rate: -0.8,
    beta1: None,
};

impl AdafactorConfig {
    fn settings(&self) -> AdafactorSettings {
        AdafactorSettings {
            relative_step: self.relative_step,
            warmup_init: self.warmup_init,
            scale_parameter: self.scale_parameter,
            clip_threshold: self.clip_threshold,
            decay_rate: self.decay_rate,
            beta1: self.beta1,
            ..GIVEN_RATE
        }
    }
}

impl OptimizerConfig {
    /// Whether some parameters are trained by the rule of that name.
    pub fn has(&self, name: &str) -> bool {
        self.name == name || self.groups.0.iter().any(|group| group.name.as_deref() == Some(name))
    }

    /// The settings that hold where no group says otherwise.
    pub fn settings(&self, state: graph::StateStorage) -> OptimizerSettings {
        OptimizerSettings {
            betas: self.betas,
            eps: self.eps,
            weight_decay: self.weight_decay,
            momentum: self.momentum,
            state,
            muon: self.muon.as_ref().map_or_else(MuonSettings::default, MuonConfig::settings),
            adafactor: self.adafactor.as_ref().map_or(GIVEN_RATE, AdafactorConfig::settings),
        }
    }

    /// All parameters that no group has.
    pub fn rest(&self, state: graph::StateStorage) -> GroupDescription {
        GroupDescription {
            patterns: Vec::new(),
            optimizer: self.name.clone(),
            lr: self.lr,
            settings: self.settings(state),
            decay_vectors: self.decay_norms,
        }
    }

    pub fn described_groups(&self, state: graph::StateStorage) -> Vec<GroupDescription> {
        let described = |group: &GroupConfig| {
            let all = self.settings(state);
            GroupDescription {
                patterns: group.patterns.clone(),
                optimizer: group.name.clone().unwrap_or_else(|| self.name.clone()),
                lr: group.lr.unwrap_or(self.lr),
                settings: OptimizerSettings {
                    betas: group.betas.or(all.betas),
                    eps: group.eps.or(all.eps),
                    weight_decay: group.weight_decay.unwrap_or(all.weight_decay),
                    momentum: group.momentum.or(all.momentum),
                    ..all
                },
                decay_vectors: self.decay_norms,
            }
        };
        self.groups.0.iter().map(described).collect()
    }
}

section! {
    pub struct ScheduleConfig {
        /// The shape of the learning rate over time.
        name: ScheduleName = word::<ScheduleName>(), default "cosine", also ["type"];
        /// Warm-up: a fraction of the run (below 1) or a number of updates.
        warmup: Span = span(), default "0", also ["warmup_ratio", "warmup_steps", "num_warmup_steps"];
        /// Passes over the training data.
        epochs: Option<f64> = number(Range::ABOVE_ZERO), default "1", also ["num_train_epochs", "num_epochs"];
        /// Updates of the run, instead of `schedule.epochs`.
        steps: Option<u64> = count(), also ["max_steps", "max_train_steps", "total_steps", "iters"];
        /// The last learning rate as a fraction of the highest.
        last as "final": f64 = number(Range::FRACTION), default "0.0", also ["min_lr_ratio", "cosine_min_lr_ratio"];
        /// Where `constant-linear` begins to decay: a fraction of the run or a number of updates; 0.8 if unset.
        decay_start: Option<Span> = span();
        /// The power of what is left of the run that `polynomial` follows; 1 if unset.
        power: Option<f64> = number(Range::ABOVE_ZERO);
        /// Updates behind the warm-up after which `inverse-sqrt` is at 0.71; as many as the warm-up has, or 10,000, if
        /// unset.
        timescale: Option<u64> = count();
    }
    one_of &[&["epochs", "steps"]];
    then Self::checked;
}

/// How long to train.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    Epochs(f64),
    Steps(u64),
}

/// What the rules look at besides rate and weight decay. Muon leaves what is no matrix to AdamW.
const SETTINGS: [(&str, &[&str]); 3] =
    [("momentum", &["sgd", "muon"]), ("betas", &["adamw", "lion", "muon"]), ("eps", &["adamw", "muon", "adafactor"])];

impl OptimizerConfig {
    fn checked(self, section: &Reader<'_>) -> Result<Self, Failure> {
        let groups = section.items("groups")?;
        let of_group = |group: &GroupConfig| group.name.clone().unwrap_or_else(|| self.name.clone());
        let names: Vec<String> = self.groups.0.iter().map(of_group).collect();
        for (group, name) in groups.iter().zip(&names) {
            if group.node("match").is_none() {
                return Err(group.missing("match"));
            }
            check_settings(group, &[name])?;
        }
        // What stands outside holds for groups too.
        let all: Vec<&String> = std::iter::once(&self.name).chain(&names).collect();
        check_settings(section, &all)?;
        Ok(self)
    }
}

/// A setting that none of the rules looks at is a mistake.
fn check_settings(section: &Reader<'_>, names: &[&String]) -> Result<(), Failure> {
    for (key, users) in SETTINGS {
        if section.node(key).is_none() || names.iter().any(|name| users.contains(&name.as_str())) {
            continue;
        }
        let quoted: Vec<String> = users.iter().map(|name| format!("`{name}`")).collect();
        let (path, name) = (section.path_of(key), names[0]);
        let message = format!("`{path}` applies to {}, but the optimizer is `{name}`", listed(&quoted));
        let instead = match (key, name.as_str()) {
            ("momentum", "adamw" | "lion") => "use the first of `optimizer.betas` instead".to_owned(),
            _ => format!("remove it, or set `{}`", section.path_of("name")),
        };
        return Err(section.invalid(key, message).hint(instead));
    }
    Ok(())
}

/// `a`, `a and b`, `a, b and c`.
fn listed(words: &[String]) -> String {
    match words {
        [before @ .., last] if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        _ => words.concat(),
    }
}

impl ScheduleConfig {
    pub fn length(&self) -> Length {
        match (self.steps, self.epochs) {
            (Some(steps), _) => Length::Steps(steps),
            // One of the two is always set: `epochs` has a default.
            (None, epochs) => Length::Epochs(epochs.unwrap_or(1.0)),
        }
    }

    fn checked(self, section: &Reader<'_>) -> Result<Self, Failure> {
        for (key, suits) in [
            ("decay_start", ScheduleName::ConstantLinear),
            ("power", ScheduleName::Polynomial),
            ("timescale", ScheduleName::InverseSqrt),
        ] {
            if let (Some(node), true) = (section.node(key), self.name != suits) {
                let path = format!("schedule.{key}");
                let message = format!("`{path}` applies to `{suits}`, but the schedule is `{}`", self.name);
                return Err(Failure::config_at(&path, &node.origin, message)
                    .hint(format!("remove it, or set `schedule.name` to `{suits}`")));
            }
        }
        Ok(self)
    }
}
